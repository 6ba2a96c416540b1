"""``weir evaluate``: what the configured trainer reaches on interactions that are kept from it."""

# ruff: noqa: ARG001, PLC0415, PLR0917 - options are parameters; imports wait until a command runs

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.cli.offline import Cases, Cutoffs, Data, FilterSeen, IndexTop, Kind, SplitKind, base_settings, prepare, rules
from weir.cli.options import Assign, ConfigFile, Debug, JsonOutput
from weir.cli.session import Session, open_session, set_up_logging

if TYPE_CHECKING:
    from trainer.offline.examination import Figures

__all__ = ["evaluate"]


def evaluate(
    data: Data,
    split: Kind = SplitKind.TEMPORAL,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 2000,
    cutoffs: Cutoffs = [10, 20, 100],  # noqa: B006 - typer copies it
    filter_seen: FilterSeen = True,
    index_top: IndexTop = None,
    cases: Cases = None,
    config: ConfigFile = None,
    assign: Assign = None,
    json: JsonOutput = False,
    debug: Debug = False,
) -> None:
    """Train on one part of a data set, test on the rest, beside ranking by popularity.

    Prints recall, NDCG, precision (with 95 % intervals over users) and coverage, and recall for popular and rare items.
    What each split lets leak is said in docs/evaluation.md. The store is not touched.
    """
    session = open_session(config, None, assign, base=base_settings(split))
    set_up_logging(session.notes)
    from trainer.offline.examination import Examination
    from trainer.offline.fit import Budget, fit
    from trainer.offline.model import OfflineModel
    from trainer.ranks.runtime import deterministic
    from weir.cli.progress import Bar

    interactions, division = prepare(data, split, session.settings.pipeline)
    test_rules = rules(split, cutoffs, filter_seen=filter_seen, index_top=index_top)
    test = Examination.of(interactions, division.train, division.test, test_rules, at_most=cases)
    with deterministic(), Bar(session.notes, "evaluate") as bar:

        def report(step: int, loss: float) -> None:
            bar.update(step, steps, f"step {step:,} of {steps:,}, loss {loss:.3f}")

        model = OfflineModel.fresh(session.settings.trainer, interactions, division.train)
        fit(model, interactions, division.train, Budget(steps, steps), report=report)
        bar.update(None, None, "testing")
        found, popular = test.test(model), test.test_popularity()
    if json:
        session.print_json({"cases": len(test.cases), "model": _plain(found), "popularity": _plain(popular)})
        return
    _print(session, len(test.cases), found, popular)


def _plain(figures: "Figures") -> Any:
    """Return figures for programs: null where there are none, since JSON has no NaN."""
    from pydantic_core import from_json, to_json

    strata = {name: stratum.model_dump() for name, stratum in figures.strata.items()}
    told = {"metrics": figures.metrics, "intervals": figures.intervals, "strata": strata}
    return from_json(to_json(told, inf_nan_mode="null"))


def _print(session: Session, cases: int, found: "Figures", popular: "Figures") -> None:
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
