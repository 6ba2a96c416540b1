"""What ``weir evaluate`` shows: what it works on, its progress, its figures and what they mean."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli.effort import Effort
from weir.cli.offline import ExperimentOptions
from weir.cli.progress import PLAIN_SECONDS, Bar
from weir.cli.tables import print_table
from weir.session import Session
from weir.text import in_words, plain, program
from weir.verdict import against, against_all, judgement

if TYPE_CHECKING:
    from weir.trainer.offline.compare import Plan
    from weir.trainer.offline.evaluator import EvaluationResult
    from weir.trainer.offline.fit import Fit, Step
    from weir.trainer.offline.judge import Comparison, Outcome

__all__ = ["judge", "next_steps", "peers_in_words", "print_facts", "print_tables", "verdict_of", "written"]


def print_facts(session: Session, plan: "Plan", sampled: list[str]) -> None:
    """Print what is trained and tested on, before that takes its time."""
    interactions, split = plan.interactions, plan.split
    users, items = len(interactions.user_ids), len(interactions.item_ids)
    parts = f"{len(split.train):,} to train on, {len(split.validation):,} to validate, {len(split.test):,} to test"
    lines = [f"{interactions.source}: {len(interactions):,} interactions, {users:,} users, {items:,} items; {parts}"]
    if sampled:
        lines.append(f"sampled: {'; '.join(sampled)}")
    for line in lines:
        session.notes.print(plain(line), soft_wrap=True)


def judge(session: Session, plan: "Plan", effort: Effort) -> "Outcome":
    """Train and test beside the peers, with progress; say how training went."""
    from weir.trainer.offline.judge import against_peers

    name, started, total = plan.rules.headline, time.monotonic(), plan.budget.steps * effort.seeds
    with Bar(session.notes, "evaluate", plain_seconds=PLAIN_SECONDS) as bar:

        def report(seed: int, step: "Step") -> None:
            done = plan.budget.steps * (seed - plan.base.seed) + step.number
            passed = time.monotonic() - started
            left = passed / done * (total - done)
            if plan.budget.seconds is not None:
                left = min(left, max(0.0, plan.budget.seconds * effort.seeds - passed))
            # A narrow terminal shows only the start.
            text = f"{in_words(left)} left at most, step {step.number:,} of {plan.budget.steps:,}"
            text += f", epoch {step.epochs:.1f}, loss {step.loss:.3f}"
            if step.best:
                text += f"; best on validation: {name} {step.best.metrics[name]:.4f} at step {step.best.step:,}"
            if effort.seeds > 1:
                text += f"; seed {seed}"
            bar.show(done, total, text)

        def told(peer: str) -> None:
            bar.show(total, total, f"tuning {peer} on validation, to compare with")

        outcome = against_peers(
            plan, report, seeds=effort.seeds, largest=effort.largest_peers, told=told, out=effort.out
        )
    for training in outcome.training:
        session.notes.print(plain(_training(training, plan)), soft_wrap=True)
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
    if training.best_step < training.steps:
        return kept
    more = "answer without --quick" if training.ended == "seconds" else "allow more --steps"
    return f"{kept}; it still got better: {more}"


def next_steps(options: ExperimentOptions) -> list[str]:
    """Return the commands that go on from a quick answer."""
    from weir.readers import PAIR_SUFFIXES, has_ending

    lines = [f"next: {program()} evaluate {options.arguments}"]
    # A folder is followed instead of replayed, and pairs have no times.
    if Path(options.data).is_file() and not has_ending(options.data, PAIR_SUFFIXES):
        lines.append(f"  or: {program()} up {options.arguments}")
    return lines


def verdict_of(outcome: "Outcome") -> str:
    """Return whether the model is better than popularity, in words, or that no figure can tell."""
    if outcome.new_share == 1:
        return f"cannot be judged: all {outcome.cases:,} test cases ask for new items, which no method can rank"
    name = outcome.headline
    return against(outcome.difference, outcome.model.metrics[name], outcome.popularity.metrics[name])


def peers_in_words(outcome: "Outcome") -> list[str]:
    """Return which peers the model beats, metric by metric, how it does beside the strongest, and which are missing."""
    if outcome.new_share == 1:
        return []
    lines = [
        f"{metric}: {against_all({peer.name: peer.leads[metric] for peer in outcome.peers})}"
        for metric in outcome.peers[0].leads
    ]
    strongest = max(outcome.peers, key=lambda peer: peer.metrics[outcome.headline])
    if strongest is not outcome.peers[0]:
        name = outcome.headline
        lead, value = strongest.leads[name], strongest.metrics[name]
        said = against(lead, outcome.model.metrics[name], value, strongest.name)
        lines.append(f"the strongest is {strongest.name}: {said}")
    return lines + [f"left out: {name}: {why}" for name, why in outcome.left_out.items()]


def written(outcome: "Outcome | None", sampled: list[str], verdict: str) -> Any:
    """Return everything for programs: null where there is no figure, since JSON has no NaN."""
    from pydantic_core import from_json, to_json

    if outcome is None:
        nothing: dict[str, Any] = {"model": None, "popularity": None, "peers": {}, "left_out": {}}
        return {"cases": 0, "sampled": sampled, **nothing, "verdict": verdict}
    shown = {
        "cases": outcome.cases,
        "new_items": outcome.new_share,
        "sampled": sampled,
        "model": _figures(outcome.model),
        "popularity": _figures(outcome.popularity),
        "difference": outcome.difference,
        "verdict": verdict,
        "peers": {peer.name: _beside(peer) for peer in outcome.peers},
        "left_out": outcome.left_out,
        "training": [_curve(training) for training in outcome.training],
    }
    return from_json(to_json(shown, inf_nan_mode="null"))


def _beside(peer: "Comparison") -> dict[str, Any]:
    shown = {"settings": peer.settings, "metrics": peer.metrics, "differences": peer.leads}
    return shown | {"differences_by_seed": peer.by_seed}


def _curve(training: "Fit") -> dict[str, Any]:
    return {
        "steps": training.steps,
        "best_step": training.best_step,
        "epochs": training.epochs,
        "ended": training.ended,
        "curve": [point.model_dump(exclude={"seconds"}) for point in training.curve],
    }


def _figures(result: "EvaluationResult") -> dict[str, Any]:
    strata = {name: stratum.model_dump() for name, stratum in result.strata.items()}
    return {"metrics": result.metrics, "intervals": result.intervals, "strata": strata}


def print_tables(session: Session, outcome: "Outcome") -> None:
    """Print the metrics of model and popularity, recall by popularity, and the peers."""
    found, popular = outcome.model, outcome.popularity
    rows = []
    for name, value in found.metrics.items():
        low, high = found.intervals.get(name, (math.nan, math.nan))
        between = "" if math.isnan(low) else f"{low:.4f} to {high:.4f}"
        rows.append([name, f"{value:.4f}", between, f"{popular.metrics[name]:.4f}"])
    title, seeds = f"{outcome.cases:,} test cases", len(outcome.training)
    if outcome.new_share:
        new = f"{_percent(outcome.new_share)} of what the test cases ask for is new: training has not seen it"
        session.out.print(plain(new), soft_wrap=True)
    if seeds > 1:
        title += f", means of {seeds} seeds"
    print_table(session, title, ["metric", "model", "95 % interval", "popularity"], rows)
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
    session.out.print()
    _print_peers(session, outcome)


def _percent(share: float) -> str:
    """Return a share; one that is not whole must not read as if it were."""
    return "100 %" if share == 1 else f"{min(99.9, max(0.1, 100 * share)):.1f} %"


def _print_peers(session: Session, outcome: "Outcome") -> None:
    """Print a row for each peer and metric: by how much the model is above it."""
    rows = [_peer_row(peer, metric) for metric in outcome.peers[0].leads for peer in outcome.peers]
    head = ["beside", "metric", "peer", "model - peer", "95 % interval", "the model is", "settings by validation"]
    print_table(session, "peers, tuned on the same validation part", head, rows)
    session.out.print()


def _peer_row(peer: "Comparison", metric: str) -> list[str]:
    lead = peer.leads[metric]
    between = "" if math.isnan(lead.low) else f"{lead.low:+.4f} to {lead.high:+.4f}"
    settings = ", ".join(f"{name} {value:g}" for name, value in peer.settings.items())
    value, apart = f"{peer.metrics[metric]:.4f}", f"{lead.mean:+.4f}"
    return [peer.name, metric, value, apart, between, judgement(lead), settings]
