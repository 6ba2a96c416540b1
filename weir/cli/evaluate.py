"""``weir evaluate``: what the configured trainer reaches on held-out interactions."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import math
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.logs import set_up_logging
from weir.cli.offline import ExperimentOptions, SplitKind
from weir.cli.options import JsonOutput
from weir.cli.progress import PLAIN_SECONDS
from weir.cli.quick import QUICK_CASES, QUICK_STEPS, quick_seconds, read_some
from weir.session import Session
from weir.text import in_words, plain

if TYPE_CHECKING:
    from trainer.offline.compare import Plan
    from trainer.offline.data import Interactions
    from trainer.offline.evaluator import EvaluationResult
    from trainer.offline.fit import Fit, Step
    from trainer.offline.judge import Outcome
    from trainer.offline.splits import Split

__all__ = ["evaluate"]

_STEPS: Final = 5000


def evaluate(
    *,
    options: ExperimentOptions,
    quick: Annotated[
        bool, typer.Option("--quick", help="Answer within two minutes on two cores, from a sample of a large log.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, at most.", show_default="5000; 1500 with --quick")
    ] = None,
    patience: Annotated[
        int, typer.Option(min=1, help="Validations in a row without a better one that end training.")
    ] = 5,
    json: JsonOutput = False,
) -> None:
    """Train on one part of a log and test on the rest, next to ranking by popularity, and say which is better.

    A part between the two says when to stop: the best step is kept. Prints recall, NDCG, precision (with 95 %
    intervals over users) and coverage, and recall for popular and rare items. docs/evaluation.md says what each split
    leaks. The store is not used.
    """
    started = time.monotonic()
    session = options.open()
    set_up_logging(session.notes)
    from trainer.offline.compare import Plan
    from trainer.offline.data import TooFewError
    from trainer.offline.fit import Budget
    from weir.verdict import SMALL_LOG, against_popularity, too_small

    log = session.settings.pipeline
    interactions, sampled = read_some(options, log) if quick else (options.read(log), [])
    is_small = len(interactions) < SMALL_LOG
    try:
        division = options.divide(interactions)
        cases = options.cases or (QUICK_CASES if quick else None)
        if quick and cases is not None and cases < len(division.test):
            sampled.append(f"{cases:,} of {len(division.test):,} test cases, at random")
        _print_facts(session, options, interactions, division, sampled)
        limit = quick_seconds(time.monotonic() - started) if quick else None
        budget = Budget(steps or (QUICK_STEPS if quick else _STEPS), None, patience, limit)
        outcome = _judge(session, Plan(interactions, division, session.settings.trainer, budget, options.rules, cases))
    except TooFewError as error:
        if not is_small or options.split is SplitKind.LABELLED:
            raise
        _print_too_small(session, f"{too_small(len(interactions))}; {error}", json=json)
        return
    lead, name = outcome.difference, options.rules.headline
    verdict = against_popularity(lead, outcome.model.metrics[name], outcome.popularity.metrics[name])
    if is_small:
        verdict = f"{too_small(len(interactions))}; {verdict}"
    if json:
        session.print_json(_plain_outcome(outcome, sampled, verdict))
        return
    _print(session, outcome)
    session.out.print()
    for line in (verdict, *(_next_steps(options) if quick else ())):
        session.out.print(plain(line), soft_wrap=True)


def _print_facts(
    session: Session, options: ExperimentOptions, interactions: "Interactions", division: "Split", sampled: list[str]
) -> None:
    """Print what is trained and tested on, before that takes its time."""
    users, items = len(interactions.user_ids), len(interactions.item_ids)
    parts = (
        f"{len(division.train):,} to train on, {len(division.validation):,} to validate, {len(division.test):,} to test"
    )
    lines = [f"{options.data}: {len(interactions):,} interactions, {users:,} users, {items:,} items; {parts}"]
    if sampled:
        lines.append(f"sampled: {'; '.join(sampled)}")
    for line in lines:
        session.notes.print(plain(line), soft_wrap=True)


def _judge(session: Session, plan: "Plan") -> "Outcome":
    """Train and test, with progress; say how training went."""
    from trainer.offline.judge import against_popularity
    from weir.cli.progress import Bar

    steps, name, started = plan.budget.steps, plan.rules.headline, time.monotonic()
    with Bar(session.notes, "evaluate", plain_seconds=PLAIN_SECONDS) as bar:

        def report(step: "Step") -> None:
            passed = time.monotonic() - started
            left = passed / step.number * (steps - step.number)
            if plan.budget.seconds is not None:
                left = min(left, max(0.0, plan.budget.seconds - passed))
            text = f"step {step.number:,} of at most {steps:,}, epoch {step.epochs:.1f}, loss {step.loss:.3f}"
            if step.best:
                text += f"; best on validation: {name} {step.best.metrics[name]:.4f} at step {step.best.step:,}"
            bar.show(step.number, steps, f"{text}; at most {in_words(left)} left")

        outcome = against_popularity(plan, report)
    session.notes.print(plain(_training(outcome.training, plan)), soft_wrap=True)
    return outcome


def _training(training: "Fit", plan: "Plan") -> str:
    """Return how training went and ended."""
    name, budget = plan.rules.headline, plan.budget
    text = f"trained {training.steps:,} steps, {training.epochs:.1f} epochs"
    why = {
        "steps": "all that --steps allows",
        "patience": f"until {budget.patience} validations in a row were no better",
        "seconds": "until the time for training was over",
    }[training.ended]
    if not training.curve:
        return f"{text}, {why}; there is no validation part to stop by"
    best = max(point.metrics[name] for point in training.curve)
    kept = f"{text}, {why}; kept step {training.best_step:,}: {name} {best:.4f} on validation"
    return f"{kept}; it still got better: allow more steps" if training.best_step == training.steps else kept


def _next_steps(options: ExperimentOptions) -> list[str]:
    lines = [f"next: weir evaluate {options.arguments}"]
    if not options.data.endswith((".txt", ".txt.gz")):
        lines.append(f"  or: weir up {options.arguments}")
    return lines


def _print_too_small(session: Session, verdict: str, *, json: bool) -> None:
    if json:
        session.print_json({"cases": 0, "model": None, "popularity": None, "verdict": verdict})
    else:
        session.out.print(plain(verdict), soft_wrap=True)


def _plain_outcome(outcome: "Outcome", sampled: list[str], verdict: str) -> Any:
    """Return everything for programs: null where there is no figure, since JSON has no NaN."""
    from pydantic_core import from_json, to_json

    training = outcome.training
    shown = {
        "cases": outcome.cases,
        "sampled": sampled,
        "model": _figures(outcome.model),
        "popularity": _figures(outcome.popularity),
        "difference": outcome.difference,
        "verdict": verdict,
        "training": {
            "steps": training.steps,
            "best_step": training.best_step,
            "epochs": training.epochs,
            "ended": training.ended,
            "curve": [point.model_dump(exclude={"seconds"}) for point in training.curve],
        },
    }
    return from_json(to_json(shown, inf_nan_mode="null"))


def _figures(result: "EvaluationResult") -> dict[str, Any]:
    strata = {name: stratum.model_dump() for name, stratum in result.strata.items()}
    return {"metrics": result.metrics, "intervals": result.intervals, "strata": strata}


def _print(session: Session, outcome: "Outcome") -> None:
    from weir.cli.tables import print_table

    found, popular = outcome.model, outcome.popularity
    rows = []
    for name, value in found.metrics.items():
        low, high = found.intervals.get(name, (math.nan, math.nan))
        between = "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
        rows.append([name, f"{value:.4f}", between, f"{popular.metrics[name]:.4f}"])
    print_table(session, f"{outcome.cases:,} test cases", ["metric", "model", "95 % interval", "popularity"], rows)
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
