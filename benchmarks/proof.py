"""Whether the default settings beat simple methods, and which correction to recommend: tables, by the user's commands.

    python -m benchmarks.proof quick     # a small generated log: minutes on one core
    python -m benchmarks.proof full      # the generated log of the demo and real logs (WEIR_DATA): hours

For each log `weir evaluate` trains three seeds of the defaults and tunes the peers on the same validation part. Then
one pass over the log as a stream is compared with peers that are made again at every window (`benchmarks.streamed`),
and `weir bench losses` gives the corrections and pools of docs/losses.md one budget.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.harness import DATA, Data, command_line, head, printed, row
from benchmarks.streamed import contest

app = command_line(__doc__)

METRICS: Final = ("recall@20", "ndcg@20")
ROWS: Final = "in-batch, none; in-batch, standard; in-batch, improved; mixed, none; mixed, standard; mixed, improved"
GENERATED: Final = 'pipeline.event_types={"play":"positive","skip":"negative"}'
PLAYS: Final = (GENERATED,)

Out = Annotated[Path, typer.Option(help="Folder for generated logs and results; losses that it holds are not rerun.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of the model and of each loss.")]


@dataclass(frozen=True)
class Trial:
    """A log, the settings that read it, and how it is split for `weir evaluate`."""

    name: str
    log: Path
    settings: tuple[str, ...] = ()
    split: str = "temporal"
    steps: int | None = None

    @property
    def arguments(self) -> list[str]:
        """Options of `weir evaluate`."""
        steps = ("--steps", str(self.steps)) if self.steps else ()
        return ["--log", str(self.log), "--split", self.split, *steps, *(f"--set={one}" for one in self.settings)]


@app.command()
def quick(
    out: Out = Path("build/proof-quick"),
    seeds: Seeds = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training, at most.")] = 300,
) -> None:
    """Test a small generated log: 300 users, 15,000 events."""
    log = generated(out, "--users", "300", "--items", "300", "--events", "15000")
    trial = Trial("generated, small", log, PLAYS, steps=steps)
    _compare_peers([trial], seeds)
    _compare_streamed([trial])
    _compare_losses(log, out / "losses", seeds, "--set", GENERATED, "--steps", str(steps))


@app.command()
def full(data: Data = DATA, out: Out = Path("build/proof"), seeds: Seeds = 3) -> None:
    """Test all logs, as far as they are there, to the end of training."""
    plays = generated(out)
    films = data / "ml-1m" / "interactions.parquet"
    sparse = data / "amazon-beauty" / "leave-one-out-order.txt.gz"
    trials = [
        Trial("generated, as in the demo", plays, PLAYS),
        Trial("ml-small, temporal", data / "ml-small" / "interactions.parquet"),
        Trial("amazon-beauty, leave-one-out", sparse, split="leave-one-out"),
        Trial("ml-1m, temporal", films),
    ]
    _compare_peers(_present(trials), seeds)
    _compare_streamed(trial for trial in _present(trials) if trial.log != sparse)  # it has no times
    for trial in _present(trials[-1:]):
        _compare_losses(trial.log, out / "losses", seeds, "--steps", "1500")


def generated(out: Path, *arguments: str) -> Path:
    """Return the generated log of these sizes, the same bytes every time."""
    log = out / "plays.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    printed("weir", "generate", str(log), *arguments)
    return log


def _present(trials: Iterable[Trial]) -> Iterator[Trial]:
    for trial in trials:
        if trial.log.exists():
            yield trial
        else:
            print(f"left out: {trial.name}: {trial.log} is not there; WEIR_DATA names the folder of the data sets\n")


def _compare_peers(trials: Iterable[Trial], seeds: int) -> None:
    beaten, asked = 0, 0
    for trial in trials:
        found = json.loads(printed("weir", "evaluate", *trial.arguments, "--seeds", str(seeds), "--json"))
        _print_peers(trial, found)
        leads = [peer["differences"][metric] for peer in found["peers"].values() for metric in METRICS]
        beaten += sum(lead["low"] is not None and lead["low"] > 0 for lead in leads)
        asked += len(leads)
    print(f"the model is above its peers, with the whole interval, in {beaten} of {asked} differences\n")


def _print_peers(trial: Trial, found: dict[str, Any]) -> None:
    """Print the table of a log, by peers and metrics."""
    print(f"\n### {trial.name}: {found['cases']:,} cases, {len(found['training'])} seeds\n")
    head("beside", *(part for metric in METRICS for part in (metric, "model - peer", "95 % interval")), "tuned")
    row("the model", *(part for metric in METRICS for part in (f"{found['model']['metrics'][metric]:.4f}", "", "")), "")
    for name, peer in found["peers"].items():
        cells = []
        for metric in METRICS:
            lead = peer["differences"][metric]
            ends = "" if lead["low"] is None else f"{lead['low']:+.4f} to {lead['high']:+.4f}"
            cells += [f"{peer['metrics'][metric]:.4f}", f"{lead['mean']:+.4f}", ends]
        row(name, *cells, ", ".join(f"{key} {value:g}" for key, value in peer["settings"].items()))
    for name, why in found["left_out"].items():
        print(f"\nleft out: {name}: {why}")
    print()


def _compare_streamed(trials: Iterable[Trial]) -> None:
    for trial in trials:
        print(f"\n## {trial.name}: one pass, window by window")
        contest(trial.log, list(trial.settings))


def _compare_losses(log: Path, out: Path, seeds: int, *arguments: str) -> None:
    options = ("--log", str(log), "--rows", ROWS, "--seeds", str(seeds), "--out", str(out), *arguments)
    print(printed("weir", "bench", "losses", *options))


if __name__ == "__main__":
    app()
