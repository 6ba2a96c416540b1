"""One model against the simple methods: trained, stopped by validation, and tested on the same cases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weir.trainer.offline.compare import Plan
from weir.trainer.offline.evaluator import Difference, EvaluationResult, Evaluator
from weir.trainer.offline.exports import export_model, export_ranks
from weir.trainer.offline.fit import Fit, Step, fit
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.peers.contest import LARGEST, Contest, Peer, PeerReport
from weir.trainer.ranking import Ranked, means
from weir.trainer.ranks.workers import deterministic

__all__ = ["Comparison", "Outcome", "SeedReport", "against_peers"]

SeedReport = Callable[[int, Step], None]
"""Called after each step with the seed of the model."""


@dataclass(frozen=True)
class Comparison:
    """A peer with the settings that validation chose, its means, and the model's lead in each compared metric.

    `by_seed` has the lead of each seed alone, in their order.
    """

    name: str
    settings: dict[str, float]
    metrics: dict[str, float]
    leads: dict[str, Difference]
    by_seed: dict[str, tuple[Difference, ...]]


@dataclass(frozen=True)
class Outcome:
    """The metrics of a model and of popularity on so many test `cases`, the peers, and the training of each seed.

    The model's are means over its seeds. `peers` has popularity first; `left_out` says why others are missing.
    `new_share` of what the cases ask for is new: training has not seen it, and no method ranks it.
    """

    cases: int
    new_share: float
    headline: str
    model: EvaluationResult
    popularity: EvaluationResult
    peers: tuple[Comparison, ...]
    left_out: dict[str, str]
    training: tuple[Fit, ...]

    @property
    def difference(self) -> Difference:
        """The model's lead over popularity in the headline metric."""
        return self.peers[0].leads[self.headline]


def against_peers(
    plan: Plan,
    report: SeedReport | None = None,
    *,
    seeds: int = 1,
    largest: int = LARGEST,
    told: PeerReport | None = None,
    out: Path | None = None,
) -> Outcome:
    """Train the model of a plan and test it beside its peers; without validation cases it trains all of its steps.

    Parameters
    ----------
    report
        Called after each step.
    seeds
        So many models, from the seed of the plan on.
    largest
        Most items of which item-kNN and EASE are made.
    told
        Called with the name of each peer before it is tuned.
    out
        Folder for vectors, scores and ranks (`weir.trainer.offline.exports`); None: none are kept.

    Raises
    ------
    TooFewError
        If there is nothing to train on.
    ValueError
        If the loss turns NaN or infinite.
    """
    validation, test = evaluators = plan.evaluators()
    first = plan.base.seed
    runs = {seed: _trained(plan, seed, evaluators, report, out) for seed in range(first, first + seeds)}
    ranked = [one for one, _ in runs.values()]
    contest = Contest(plan.interactions, plan.split.train, plan.rules, largest)
    peers = contest.run(validation, test, told)
    if out:
        rankings = {f"model, seed {seed}": one for seed, (one, _) in runs.items()}
        export_ranks(out, plan.interactions, test, rankings | {peer.name: peer.ranked for peer in peers})
    return Outcome(
        len(test.cases),
        test.new_share,
        plan.rules.headline,
        test.result(*ranked),
        test.result(peers[0].ranked),
        tuple(_compared(test, ranked, peer) for peer in peers),
        contest.left_out,
        tuple(training for _, training in runs.values()),
    )


def _trained(
    plan: Plan,
    seed: int,
    evaluators: tuple[Evaluator, Evaluator],
    report: SeedReport | None,
    out: Path | None,
) -> tuple[Ranked, Fit]:
    """Train a model with a seed, and rank the test with it."""
    validation, test = evaluators
    config = plan.base.model_copy(update={"seed": seed})
    with deterministic():
        model = OfflineModel.fresh(config, plan.interactions, plan.split.train)
        held_out = validation if len(validation.cases) else None
        told = partial(report, seed) if report else None
        training = fit(model, plan.interactions, plan.split.train, plan.budget, validation=held_out, report=told)
        ranked = test.rank(model)
        if out:
            export_model(out, plan.interactions, test, model, ranked)
        return ranked, training


def _compared(test: Evaluator, models: Sequence[Ranked], peer: Peer) -> Comparison:
    leads = {metric: test.difference(models, peer.ranked, metric) for metric in test.rules.compared}
    by_seed = {
        metric: tuple(test.difference([one], peer.ranked, metric) for one in models) for metric in test.rules.compared
    }
    return Comparison(peer.name, peer.settings, means(peer.ranked, test.rules.cutoffs), leads, by_seed)
