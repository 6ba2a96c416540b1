"""``weir bench``: the cost of a training step by part, and a comparison of losses on a user's own data."""

import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.offline import ExperimentOptions
from weir.cli.terminal.command import command, set_up_logging
from weir.cli.terminal.options import JsonOutput, StoreOptions
from weir.cli.terminal.output import print_table
from weir.errors import CommandError, UsageError
from weir.session import Session
from weir.text import plain

if TYPE_CHECKING:
    from weir.trainer.offline.compare import Plan, Row
    from weir.trainer.offline.fit import Budget, Step, StepReport
    from weir.trainer.offline.results import Comparison
    from weir.trainer.stream.cost import StepCost

__all__ = ["app", "step"]

_PARTS: Final = {
    "draw": "draw negatives",
    "rows": "distinct rows of the table",
    "hits": "accidental hits",
    "tower": "look-up and tower, forward",
    "loss": "loss and its gradient",
    "backward": "backward of the tower and the look-up",
    "sum": "sum over ranks",
    "update": "optimisers",
}

app = typer.Typer(help="Compare methods, and see what they cost, on your own data.", no_args_is_help=True)


# ruff: noqa: PLC0415 - imports wait until a command runs


def step(
    *,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Examples per step; may be repeated.", show_default="trainer.batch_size"),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that count, at most.")] = 20,
    options: StoreOptions,
    json: JsonOutput = False,
) -> None:
    """Train a fresh model on the newest windows, and print the cost of each part of a step per example.

    Also shows two lower bounds: the user tower alone, with its look-up, and the three matrix products of the loss
    (logits and their two gradients). Times are CPU time, or wall time on a GPU. Nothing is written.
    """
    session = options.open()
    from weir.cli.inspect.windows import no_window
    from weir.contracts import WindowLog
    from weir.trainer.stream.cost import measure

    config = session.settings.trainer
    if not WindowLog(session.store).newest(1):
        raise CommandError(no_window(session.store, ""))
    costs = [
        measure(WindowLog(session.store), config.model_copy(update={"batch_size": size}), steps)
        for size in batch or [config.batch_size]
    ]
    if json:
        session.print_json({"steps": [asdict(cost) for cost in costs]})
        return
    kinds = f"{config.tower.kind}, {config.loss.kind}, {costs[0].items:,} items"
    session.out.print(plain(f"microseconds per example by batch size: {kinds}"), soft_wrap=True)
    print_table(
        session,
        "",
        ["part", *(f"{cost.batch_size:,}" for cost in costs)],
        _lines(costs),
    )


def _lines(costs: list["StepCost"]) -> list[list[str]]:
    """Return the rows of the table: a part of a step, and its cost for each batch size."""

    def line(name: str, values: list[float], form: str = ".1f") -> list[str]:
        return [name, *(f"{value:{form}}" for value in values)]

    parts = [line(_PARTS[part], [cost.parts[part] for cost in costs]) for part in costs[0].parts]
    return [
        *parts,
        line("whole step", [cost.step for cost in costs]),
        line("tower alone", [cost.tower for cost in costs]),
        line("three products alone", [cost.products for cost in costs]),
        line("step / (tower + products)", [cost.ratio for cost in costs], ".2f"),
        line("steps measured", [cost.steps for cost in costs], "d"),
    ]


@app.callback()
def _group() -> None:
    """Compare methods, and see what they cost, on your own data."""


app.command("step")(command(step))


@app.command("losses")
@command
def losses(
    *,
    options: ExperimentOptions,
    rows: Annotated[
        str,
        typer.Option(
            help="Families (softmax, resampling, pairwise, pointwise), all, or rows by name; separated by semicolons."
        ),
    ] = "softmax",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row, with seeds 0, 1, ...")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run; with --patience, at most.")] = 2000,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Validations in a row without a better one that end a run; its best step is tested."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results and report.")] = Path(
        "build/bench-losses"
    ),
    headline: Annotated[str, typer.Option(help="Metric by which the report ranks.")] = "recall@20",
    json: JsonOutput = False,
) -> None:
    """Train the chosen losses with the same budget, and write a table, curves, and recall by popularity.

    The budget is --steps or, with --patience, training until validation stops improving. Each run has its own file, so
    a comparison that was stopped does only the missing runs when started again. The trainer's settings (tower, batch,
    optimiser) apply to all rows; a row sets its loss and negatives.
    """
    session = options.open()
    set_up_logging(session.notes)
    from weir.trainer.offline.compare import Plan, compare, missing_runs
    from weir.trainer.offline.fit import Budget
    from weir.trainer.offline.report import write_report
    from weir.trainer.offline.results import save_comparison

    chosen = _chosen(rows)
    _check_headline(headline, options.rules.cutoffs)
    interactions = options.read(session)
    division = options.divide(interactions)
    if patience is not None and not len(division.validation):
        raise UsageError(f"--patience = {patience}: --split {options.split} leaves nothing for validation; use --steps")
    budget = Budget(steps, max(steps // 6, 1)) if patience is None else Budget(steps, patience=patience)
    plan = Plan(interactions, division, session.settings.trainer, budget, options.rules, options.cases)
    comparison = _comparison(plan, chosen, tuple(range(seeds)), options, headline)
    out.mkdir(parents=True, exist_ok=True)
    _refuse_other(out, comparison)
    save_comparison(out, comparison)
    missing = missing_runs(chosen, comparison.seeds, out)
    with _progress(session, len(missing), steps) as start:
        compare(plan, chosen, comparison.seeds, out, start)
    page = write_report(out)
    if json:
        session.print_json({"report": str(page), "table": str(out / "table.csv")})
        return
    for line in (out / "table.md").read_text().splitlines():
        session.out.print(plain(line), soft_wrap=True)
    session.out.print(plain(f"the whole report: {page}"), soft_wrap=True)


def _chosen(rows: str) -> "dict[str, Row]":
    from weir.trainer.offline.compare import choose_rows

    try:
        return choose_rows(rows)
    except ValueError as error:
        raise UsageError(f"--{error}") from error


def _check_headline(headline: str, cutoffs: tuple[int, ...]) -> None:
    from weir.trainer.ranking import NAMES

    allowed = [f"{name}@{k}" for name in NAMES for k in cutoffs]
    if headline not in allowed:
        raise UsageError(f"--headline = {headline!r}: is not measured; with these --k allowed: {', '.join(allowed)}")


def _comparison(
    plan: "Plan", rows: "dict[str, Row]", seeds: tuple[int, ...], options: ExperimentOptions, headline: str
) -> "Comparison":
    from weir.contracts.storage.format import software_version
    from weir.trainer.offline.results import Comparison

    budget, sizes, data = plan.budget, plan.split, Path(options.data)
    return Comparison(
        title=f"{len(rows)} losses, {_effort(budget)}",
        data="/".join(data.parts[-2:]) if data.parent.name else data.name,
        split=str(options.split),
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
        versions={"weir": software_version()}
        | {name: version(name) for name in ("torch", "numpy")}
        | {"python": platform.python_version()},
        command=shlex.join(["weir", *sys.argv[1:]]),
    )


def _effort(budget: "Budget") -> str:
    if budget.patience is None:
        return f"{budget.steps:,} steps each"
    return f"each until {budget.patience} validations in a row were no better, at most {budget.steps:,} steps"


def _settings(plan: "Plan", name: str, row: "Row") -> dict[str, Any]:
    """Return the settings that determine a table row's results: five of its sections, its estimator, the budget."""
    from pydantic import ValidationError

    try:
        plain = row.configure(plan.base, 0).model_dump(mode="json")
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"the row {name!r} is incompatible with these settings: {problem}") from error
    kept = {name: plain[name] for name in ("batch_size", "tower", "negatives", "loss", "optimizer")}
    until = {} if plan.budget.patience is None else {"patience": plan.budget.patience}
    return kept | {"estimator": row.estimator, "steps": plan.budget.steps, **until}


def _refuse_other(out: Path, comparison: "Comparison") -> None:
    """Raise `CommandError` if the folder holds runs of another comparison than this one."""
    from weir.trainer.offline.results import COMPARISON_NAME, load_comparison

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


@contextmanager
def _progress(session: Session, runs: int, steps: int) -> "Iterator[Callable[[str, int], StepReport]]":
    """Context manager: show the progress over all runs, as a bar, or as a line for each run without a terminal.

    Yields a function that announces a run, given its name and seed, and returns the callback for the run's steps.
    """
    from weir.cli.terminal.output import Bar

    notes, numbers = session.notes, count()
    with Bar(notes, "bench") as bar:

        def start(name: str, seed: int) -> "StepReport":
            number = next(numbers)
            if not notes.is_terminal:
                notes.print(plain(f"run {number + 1} of {runs}: {name}, seed {seed}"), soft_wrap=True)

            def report(step: "Step") -> None:
                text = f"{name}, seed {seed}: step {step.number:,} of {steps:,}, loss {step.loss:.3f}"
                bar.show(number * steps + step.number, runs * steps, text)

            return report

        yield start
