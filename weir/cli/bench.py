"""``weir bench``: comparisons that a user can make on data of their own."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

import platform
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.errors import CommandError, UsageError, guarded
from weir.cli.offline import Cases, Cutoffs, Data, FilterSeen, IndexTop, Kind, SplitKind, base_settings, prepare, rules
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput
from weir.cli.session import Session, open_session, set_up_logging
from weir.text import plain

if TYPE_CHECKING:
    from trainer.offline.compare import Plan
    from trainer.offline.results import Comparison
    from trainer.offline.rows import Row

__all__ = ["app"]

app = typer.Typer(help="Compare methods on data of your own.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Compare methods on data of your own."""


@app.command("losses")
@guarded
def losses(
    data: Data,
    split: Kind = SplitKind.TEMPORAL,
    rows: Annotated[
        str,
        typer.Option(
            help="Families (softmax, resampling, pairwise, pointwise), all, or rows by name; separated by semicolons."
        ),
    ] = "softmax",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every row, with seeds 0, 1, ...")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a run.")] = 2000,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results and report.")] = Path(
        "build/bench-losses"
    ),
    cutoffs: Cutoffs = [10, 20, 100],  # noqa: B006 - typer copies it
    headline: Annotated[str, typer.Option(help="The metric that the report ranks by.")] = "recall@20",
    filter_seen: FilterSeen = True,
    index_top: IndexTop = None,
    cases: Cases = None,
    config: ConfigFile = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Train the chosen losses under one budget, and write a table, curves, and recall by popularity.

    Every run is kept in its own file: stop the comparison at any moment and start it again, it goes on with what is
    missing. Settings of the trainer (tower, batch, optimiser) hold for all rows; a row sets its loss and negatives.
    """
    session = open_session(config, None, assign, base=base_settings(split))
    set_up_logging(session.notes)
    from trainer.offline.compare import Plan, compare, missing_runs
    from trainer.offline.fit import Budget
    from trainer.offline.report import write_report
    from trainer.offline.results import save_comparison

    chosen = _chosen(rows)
    _check_headline(headline, cutoffs)
    interactions, division = prepare(data, split, session.settings.pipeline)
    test = rules(split, cutoffs, filter_seen=filter_seen, index_top=index_top)
    budget = Budget(steps, max(steps // 6, 1))
    plan = Plan(interactions, division, session.settings.trainer, budget, test, cases)
    comparison = _comparison(plan, chosen, tuple(range(seeds)), (data, str(split), headline))
    out.mkdir(parents=True, exist_ok=True)
    _refuse_other(out, comparison)
    save_comparison(out, comparison)
    missing = missing_runs(chosen, comparison.seeds, out)
    with _Progress(session, len(missing), steps) as progress:
        compare(plan, chosen, comparison.seeds, out, progress.of)
    page = write_report(out)
    if json:
        session.print_json({"report": str(page), "table": str(out / "table.csv")})
        return
    for line in (out / "table.md").read_text().splitlines():
        session.out.print(plain(line))
    session.out.print(plain(f"the whole report: {page}"), soft_wrap=True)


def _chosen(rows: str) -> "dict[str, Row]":
    from trainer.offline.rows import choose_rows

    try:
        return choose_rows(rows)
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _check_headline(headline: str, cutoffs: list[int]) -> None:
    from trainer.offline.metrics import NAMES

    allowed = [f"{name}@{k}" for name in NAMES for k in sorted(set(cutoffs))]
    if headline not in allowed:
        raise UsageError(f"--headline = {headline!r}: is not measured; with these --k allowed: {', '.join(allowed)}")


def _comparison(
    plan: "Plan", rows: "dict[str, Row]", seeds: tuple[int, ...], named: tuple[str, str, str]
) -> "Comparison":
    from trainer.offline.results import Comparison

    data, split, headline = named
    budget, sizes = plan.budget, plan.split
    return Comparison(
        title=f"{len(rows)} losses, {budget.steps:,} steps each",
        data=Path(data).name if Path(data).parent.name == "" else f"{Path(data).parent.name}/{Path(data).name}",
        split=split,
        rows=tuple(rows),
        seeds=seeds,
        cutoffs=plan.rules.cutoffs,
        headline=headline,
        configuration={name: _settings(plan, name, row) for name, row in rows.items()},
        facts={
            "users": len(plan.interactions.user_ids),
            "items": len(plan.interactions.item_ids),
            "train": len(sizes.train),
            "validation": len(sizes.validation),
            "test": len(sizes.test),
            "test cases": plan.test_cases or "all",
            "seen items": "left out" if plan.rules.filter_seen else "ranked",
            "ranked items": f"top {plan.rules.index_top} and all of the test" if plan.rules.index_top else "all",
        },
        versions={name: version(name) for name in ("weir", "torch", "numpy")} | {"python": platform.python_version()},
        command=shlex.join(["weir", *sys.argv[1:]]),
    )


def _settings(plan: "Plan", name: str, row: "Row") -> dict[str, Any]:
    """Return what decides a run: the sections of its configuration, the budget and what counts."""
    from pydantic import ValidationError

    try:
        plain = row.configure(plan.base, 0).model_dump(mode="json")
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"the row {name!r} does not go with these settings: {problem}") from error
    kept = {name: plain[name] for name in ("batch_size", "tower", "negatives", "loss", "optimizer")}
    return kept | {"estimator": row.estimator, "steps": plan.budget.steps}


def _refuse_other(out: Path, comparison: "Comparison") -> None:
    """Stop before runs of two different comparisons come together in one folder."""
    from trainer.offline.results import COMPARISON_NAME, load_comparison

    if not (out / COMPARISON_NAME).exists():
        return
    before = load_comparison(out)
    shared = before.configuration.keys() & comparison.configuration.keys()
    named = [
        name for name in ("data", "split", "cutoffs", "facts") if getattr(before, name) != getattr(comparison, name)
    ]
    named += [f"row {name}" for name in sorted(shared) if before.configuration[name] != comparison.configuration[name]]
    if named:
        raise CommandError(
            f"{out} holds another comparison: {', '.join(named)} differ; choose another --out, or remove the folder"
        )


class _Progress:
    """A bar over the missing runs, with the step and the loss of the one in hand; plain lines without a terminal."""

    def __init__(self, session: Session, runs: int, steps: int) -> None:
        from weir.cli.progress import Bar

        self._bar = Bar(session.notes, "bench")
        self._notes, self._runs, self._steps, self._done = session.notes, runs, steps, 0

    def __enter__(self) -> "_Progress":
        self._bar.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._bar.__exit__(*failure)

    def of(self, name: str, seed: int) -> Callable[[int, float], None]:
        """Begin a run, and return what it reports to."""
        before, self._done = self._done * self._steps, self._done + 1
        if not self._notes.is_terminal:
            self._notes.print(plain(f"run {self._done} of {self._runs}: {name}, seed {seed}"), soft_wrap=True)

        def report(step: int, loss: float) -> None:
            text = f"{name}, seed {seed}: step {step:,} of {self._steps:,}, loss {loss:.3f}"
            self._bar.update(before + step, self._runs * self._steps, text)

        return report
