"""One pass over a log with each user tower: what it finds, beside the CPU that it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.stream_towers run LOG --tower recency --tower hstu --batch 128 --batch 256
    python -m benchmarks.stream_towers draw

A tower may be followed by its layers: `hstu:2`. `weir ingest` cuts the log into windows, at most 60 of a usual length,
and each is a test before it is learned. Smaller batches find more and cost more, so that towers which cost the same
can be compared, whatever each costs with the default. CPU is that of the whole process but for the tests: with one
thread, what training takes, with reading the windows. `run` adds lines to the results, `draw` shows all of them.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import torch
import typer

from benchmarks.harness import command_line, head, row
from benchmarks.streamed import METRICS, MODEL, Stream, ingested, train
from weir.contracts import Store, WindowManifest
from weir.trainer.config import TrainerConfig
from weir.trainer.offline.data import Ints
from weir.trainer.offline.evaluator import Evaluator
from weir.trainer.offline.stored import read_store
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shared_window import SharedWindow

app = command_line(__doc__)

SAVED: Final = Path("docs/towers.jsonl")
Results = Annotated[Path, typer.Option(help="where results are")]


class Pass(msgspec.Struct, frozen=True):
    """What one pass over a log found, means over the cases of all windows, and its CPU seconds."""

    log: str
    tower: str
    batch: int
    seed: int
    recall: float
    ndcg: float
    cpu: float


class Alone(Stream):
    """Tests the model only, and knows the CPU seconds of that."""

    spent: float = 0.0

    def test(self, state: TrainerState, manifest: WindowManifest, found: SharedWindow) -> None:
        """Rank events of a window by everything that came before it."""
        started = time.process_time()
        super().test(state, manifest, found)
        self.spent += time.process_time() - started

    def _peers(self, train: Ints, test: Evaluator) -> dict[str, dict[str, np.ndarray]]:  # noqa: ARG002
        return {}

    def mean(self, metric: str) -> float:
        """Return the mean over all cases."""
        return float(np.concatenate([one.values[MODEL][metric] for one in self.tests]).mean())


@app.command()
def run(
    log: Annotated[Path, typer.Argument(exists=True, help="the log")],
    *,
    tower: Annotated[list[str], typer.Option(help="KIND or KIND:LAYERS")] = ["recency"],  # noqa: B006
    batch: Annotated[list[int], typer.Option(min=2, help="examples of a step")] = [128],  # noqa: B006
    seed: Annotated[list[int], typer.Option(help="of everything that is drawn")] = [0],  # noqa: B006
    cases: Annotated[int, typer.Option(min=1, help="events of each window that are ranked, at most")] = 300,
    results: Results = SAVED,
) -> None:
    """Train with each tower, batch and seed, and add what comes out to the results."""
    torch.set_num_threads(1)
    configs = [config_of(kind, size, one) for one, kind, size in product(seed, tower, batch)]
    with tempfile.TemporaryDirectory() as folder:
        store = ingested(log, f"{folder}/store", ["pipeline.metrics_port=0"])
        for config in configs:
            found = passed(Store(store), log.resolve().parent.name, config, cases)
            with results.open("a") as file:
                file.write(msgspec.json.encode(found).decode() + "\n")
            print(found, flush=True)


def config_of(tower: str, batch: int, seed: int) -> TrainerConfig:
    """Return the default settings with a tower, KIND or KIND:LAYERS, a batch size and a seed."""
    kind, _, layers = tower.partition(":")
    settings = {"kind": kind, "layers": layers or 1}
    try:
        return TrainerConfig.model_validate({"tower": settings, "batch_size": batch, "seed": seed, "device": "cpu"})
    except ValueError as error:
        raise typer.BadParameter(f"tower {tower!r}, batch {batch}: {error}") from error


def passed(store: Store, log: str, config: TrainerConfig, cases: int) -> Pass:
    """Train one pass over the windows of a store, each tested on so many cases before."""
    stream, started = Alone(read_store(store.path("")), cases), time.process_time()
    train(store, config, stream)
    cpu = time.process_time() - started - stream.spent
    recall, ndcg = map(stream.mean, METRICS)
    tower = config.tower.kind + (f":{config.tower.layers}" if config.tower.layers > 1 else "")
    return Pass(log, tower, config.batch_size, config.seed, recall, ndcg, cpu)


@app.command("draw")
def draw_all(
    results: Results = SAVED,
    picture: Annotated[Path, typer.Option(help="where the picture goes")] = Path("docs/images/towers.png"),
) -> None:
    """Print the table of what is saved, means over seeds, and draw the picture."""
    found = [msgspec.json.decode(line, type=Pass) for line in results.read_text().splitlines()]
    head("log", "tower", "batch", "seeds", "Recall@20", "NDCG@20", "CPU s")
    for (log, tower, batch), some in by_setting(found):
        values = [f"{np.mean([getattr(one, name) for one in some]):.4f}" for name in ("recall", "ndcg")]
        row(log, f"`{tower}`", batch, len(some), *values, f"{np.mean([one.cpu for one in some]):.1f}")
    draw(found, picture)


def by_setting(found: list[Pass]) -> Iterator[tuple[tuple[str, str, int], list[Pass]]]:
    """Yield what differs by seed only, in the order of log, tower and batch; of the same pass, the newest result."""
    groups = defaultdict[tuple[str, str, int], list[Pass]](list)
    for one in {(one.log, one.tower, one.batch, one.seed): one for one in found}.values():
        groups[one.log, one.tower, one.batch].append(one)
    yield from sorted(groups.items())


def draw(found: list[Pass], picture: Path) -> None:
    """Plot recall by CPU, a panel for each log and a line for each tower; a point for each seed."""
    import matplotlib as mpl  # noqa: PLC0415  only this command needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    logs = sorted({one.log for one in found})
    towers = sorted({one.tower for one in found})
    figure, panels = plt.subplots(1, len(logs), figsize=(6 * len(logs), 4.6), layout="constrained", squeeze=False)
    for axes, log in zip(panels[0], logs, strict=True):
        for number, tower in enumerate(towers):
            groups = [some for (where, kind, _), some in by_setting(found) if (where, kind) == (log, tower)]
            if not groups:
                continue
            means = [(np.mean([one.cpu for one in some]), np.mean([one.recall for one in some])) for some in groups]
            axes.plot(*zip(*means, strict=True), "-", color=f"C{number}", label=tower)
            points = [(one.cpu, one.recall) for some in groups for one in some]
            axes.plot(*zip(*points, strict=True), ".", color=f"C{number}")
        axes.set(title=log, xlabel="CPU seconds of a pass", ylabel="Recall@20 of one pass", xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3, which="both")
    panels[0][-1].legend(fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"\n{picture}")


if __name__ == "__main__":
    app()
