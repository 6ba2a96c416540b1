"""``weir evaluate``: offline quality of the configured trainer, next to simple methods, and a verdict in words."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli.offline import ExperimentOptions, SplitKind
from weir.cli.terminal.command import set_up_logging
from weir.cli.terminal.options import JsonOutput
from weir.cli.terminal.output import PLAIN_SECONDS, Bar, print_table
from weir.session import Session
from weir.text import in_words, plain, program
from weir.verdict import against, against_all, judgement

if TYPE_CHECKING:
    from weir.trainer.offline.compare import Plan
    from weir.trainer.offline.data import Interactions
    from weir.trainer.offline.evaluator import EvaluationResult
    from weir.trainer.offline.fit import Fit, Step
    from weir.trainer.offline.judge import Comparison, Outcome

__all__ = [
    "Effort",
    "evaluate",
    "judge",
    "next_steps",
    "peers_in_words",
    "print_facts",
    "print_tables",
    "verdict_of",
    "written",
]


# ruff: noqa: PLC0415 - imports wait until a command runs


_STEPS: Final = 5000
_VALIDATION_CASES: Final = 2000

_QUICK_STEPS: Final = 1500
_QUICK_ROWS: Final = 1_000_000
_QUICK_INTERACTIONS: Final = 300_000
_QUICK_SECONDS: Final = 75.0
"""Seconds from the start of the command to the end of training with --quick, at most."""
_LEAST_SECONDS: Final = 15.0
"""Least seconds for training, however long reading took."""
_QUICK_SCORES: Final = 200_000_000
"""Most scores (cases x items) that a test computes with --quick."""
_QUICK_PEERS: Final = 4000
"""Most items with --quick for which peers with an item-item matrix are built."""
_LEAST_CASES: Final = 1000


@dataclass(frozen=True)
class Effort:
    """The part of the log to use, and the budget of training."""

    quick: Annotated[
        bool, typer.Option("--quick", help="Answer within two minutes on two cores, from a sample of a large log.")
    ] = False
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, at most.", show_default="5000; 1500 with --quick")
    ] = None
    patience: Annotated[
        int, typer.Option(min=1, help="Validations in a row without a better one that end training.")
    ] = 5

    seeds: Annotated[
        int, typer.Option(min=1, help="Number of models to train with other random draws; figures are means over them.")
    ] = 1

    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder for vectors, scores and ranks of the test as Parquet files."),
    ] = None

    @property
    def largest_peers(self) -> int:
        """Most items for which the peers item-kNN and EASE are built."""
        from weir.trainer.offline.contest import LARGEST

        return _QUICK_PEERS if self.quick else LARGEST

    def read(self, session: Session, options: ExperimentOptions) -> "tuple[Interactions, list[str]]":
        """Read the log, or with --quick a sample of users in its last rows; also return in words what was sampled."""
        from weir.trainer.offline.data import sample_users

        if not self.quick:
            return options.read(session), []
        read = options.read(session, newest=_QUICK_ROWS)
        some = sample_users(read, _QUICK_INTERACTIONS)
        sampled = []
        if read.newest_rows is not None:
            from weir.readers import has_ending

            # A compressed file can only be read from its start.
            place = "first" if has_ending(options.data, [".gz"]) else "last"
            sampled.append(f"the {place} {read.newest_rows:,} rows of the log")
        if some is not read:
            chosen = f"{len(some.user_ids):,} of {len(read.user_ids):,} users, at random"
            sampled.append(f"{chosen}, with {len(some):,} of {len(read):,} interactions")
        return some, sampled

    def plan(
        self, session: Session, options: ExperimentOptions, interactions: "Interactions", started: float
    ) -> "tuple[Plan, list[str]]":
        """Return the plan of training and testing, and in words which test cases are left out.

        `started` is the start of the command, by `time.monotonic`. Raises `TooFewError` if no test case is left.
        """
        from weir.trainer.offline.compare import Plan
        from weir.trainer.offline.fit import Budget

        division, config = options.divide(interactions), session.settings.trainer
        if not self.quick:
            budget = Budget(self.steps or _STEPS, patience=self.patience)
            return Plan(interactions, division, config, budget, options.rules, options.cases, _VALIDATION_CASES), []
        cases = max(_LEAST_CASES, _QUICK_SCORES // len(interactions.item_ids))
        tested = options.cases or cases
        limit = max(_LEAST_SECONDS, _QUICK_SECONDS - (time.monotonic() - started))
        budget = Budget(self.steps or _QUICK_STEPS, patience=self.patience, seconds=limit)
        plan = Plan(interactions, division, config, budget, options.rules, tested, min(cases, _VALIDATION_CASES))
        left_out = tested < len(division.test)
        return plan, [f"{tested:,} of {len(division.test):,} test cases, at random"] if left_out else []


def print_facts(session: Session, plan: "Plan", sampled: list[str]) -> None:
    """Print facts about the data and its split, before the long work starts."""
    interactions, split = plan.interactions, plan.split
    users, items = len(interactions.user_ids), len(interactions.item_ids)
    parts = f"{len(split.train):,} to train on, {len(split.validation):,} to validate, {len(split.test):,} to test"
    lines = [f"{interactions.source}: {len(interactions):,} interactions, {users:,} users, {items:,} items; {parts}"]
    if sampled:
        lines.append(f"sampled: {'; '.join(sampled)}")
    for line in lines:
        session.notes.print(plain(line), soft_wrap=True)


def judge(session: Session, plan: "Plan", effort: Effort) -> "Outcome":
    """Train and test the model and its peers (simple methods), show the progress, and print how training ended."""
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
    """Return a sentence on how long training took and why it ended."""
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
    """Return the commands to run after a quick answer."""
    from weir.readers import PAIR_SUFFIXES, has_ending

    lines = [f"next: {program()} evaluate {options.arguments}"]
    # A folder is followed instead of replayed, and pairs have no times.
    if Path(options.data).is_file() and not has_ending(options.data, PAIR_SUFFIXES):
        lines.append(f"  or: {program()} up {options.arguments}")
    return lines


def verdict_of(outcome: "Outcome") -> str:
    """Return in words whether the model beats popularity, or that the test is too small to tell."""
    if outcome.new_share == 1:
        return f"cannot be judged: all {outcome.cases:,} test cases ask for new items, which no method can rank"
    name = outcome.headline
    return against(outcome.difference, outcome.model.metrics[name], outcome.popularity.metrics[name])


def peers_in_words(outcome: "Outcome") -> list[str]:
    """Return sentences: for each metric the peers that the model beats, its lead over the best, and peers left out."""
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
    """Return all results for JSON, with null for a missing figure, as JSON has no NaN."""
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
    """Format a share in percent; only a share of exactly 1 is shown as 100 %."""
    return "100 %" if share == 1 else f"{min(99.9, max(0.1, 100 * share)):.1f} %"


def _print_peers(session: Session, outcome: "Outcome") -> None:
    """Print a row for each peer and metric with the model's lead."""
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


def evaluate(*, options: ExperimentOptions, effort: Effort, json: JsonOutput = False) -> None:
    """Train on one part of a log and test on the rest, next to simple methods, and say which is better.

    A validation part in between chooses the best step, and tunes the simple methods: popularity, item-kNN and EASE.
    Prints recall, NDCG, precision (with 95 % intervals over users) and coverage, recall for popular and rare items, and
    the model's lead over each simple method. docs/evaluation.md says what each split leaks. Stores are only read.
    """
    started = time.monotonic()
    session = options.open()
    set_up_logging(session.notes)
    from weir.trainer.offline.data import TooFewError
    from weir.trainer.offline.judge import Outcome
    from weir.verdict import SMALL_LOG, too_small

    interactions, sampled = effort.read(session, options)
    outcome: Outcome | None = None
    small = too_small(len(interactions)) if len(interactions) < SMALL_LOG else ""
    try:
        plan, left_out = effort.plan(session, options, interactions, started)
        sampled += left_out
        print_facts(session, plan, sampled)
        outcome = judge(session, plan, effort)
        verdict = "; ".join(filter(None, (small, verdict_of(outcome))))
    except TooFewError as error:
        if not small or options.split is SplitKind.LABELLED:
            raise
        verdict = f"{small}; {error}"
    if json:
        session.print_json(written(outcome, sampled, verdict))
        return
    if outcome is not None:
        print_tables(session, outcome)
    peers = peers_in_words(outcome) if outcome is not None else []
    for line in (*peers, verdict, *(next_steps(options) if effort.quick else ())):
        session.out.print(plain(line), soft_wrap=True)
