"""``weir evaluate``: what the configured trainer reaches on held-out interactions."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.logs import set_up_logging
from weir.cli.offline import ExperimentOptions
from weir.cli.options import JsonOutput
from weir.session import Session

if TYPE_CHECKING:
    from trainer.offline.evaluator import EvaluationResult

__all__ = ["evaluate"]


def evaluate(
    *,
    options: ExperimentOptions,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 2000,
    json: JsonOutput = False,
) -> None:
    """Train on one part of a data set and test on the rest, next to ranking by popularity.

    Prints recall, NDCG, precision (with 95 % intervals over users) and coverage, and recall for popular and rare items.
    docs/evaluation.md says what each split leaks. The store is not used.
    """
    session = options.open()
    set_up_logging(session.notes)
    from trainer.offline.evaluator import Evaluator
    from trainer.offline.fit import Budget, fit
    from trainer.offline.model import OfflineModel
    from trainer.ranks.workers import deterministic
    from weir.cli.progress import Bar

    interactions, division = options.read(session.settings.pipeline)
    test = Evaluator.of(interactions, division.train, division.test, options.rules, at_most=options.cases)
    with deterministic(), Bar(session.notes, "evaluate") as bar:

        def report(step: int, loss: float) -> None:
            bar.show(step, steps, f"step {step:,} of {steps:,}, loss {loss:.3f}")

        model = OfflineModel.fresh(session.settings.trainer, interactions, division.train)
        fit(model, interactions, division.train, Budget(steps, steps), report=report)
        bar.show(None, None, "testing")
        found, popular = test.test(model), test.test_popularity()
    if json:
        session.print_json({"cases": len(test.cases), "model": _plain(found), "popularity": _plain(popular)})
        return
    _print(session, len(test.cases), found, popular)


def _plain(figures: "EvaluationResult") -> Any:
    """Return figures for programs: null where there are none, since JSON has no NaN."""
    from pydantic_core import from_json, to_json

    strata = {name: stratum.model_dump() for name, stratum in figures.strata.items()}
    shown = {"metrics": figures.metrics, "intervals": figures.intervals, "strata": strata}
    return from_json(to_json(shown, inf_nan_mode="null"))


def _print(session: Session, cases: int, found: "EvaluationResult", popular: "EvaluationResult") -> None:
    from weir.cli.tables import print_table

    rows = []
    for name, value in found.metrics.items():
        low, high = found.intervals.get(name, (math.nan, math.nan))
        between = "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
        rows.append([name, f"{value:.4f}", between, f"{popular.metrics[name]:.4f}"])
    print_table(session, f"{cases:,} test cases", ["metric", "model", "95 % interval", "popularity"], rows)
    session.out.print()
    strata = [
        [
            name,
            f"{stratum.share:.1%}",
            *("" if math.isnan(value) else f"{value:.4f}" for value in stratum.metrics.values()),
        ]
        for name, stratum in found.strata.items()
    ]
    names = next(iter(found.strata.values())).metrics
    print_table(session, "by popularity in training", ["items", "share of cases", *names], strata)
