"""Compare a model with simple peers: train it with early stopping and test all on the same cases."""

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
"""Called after each step, with the seed of the model."""


@dataclass(frozen=True)
class Comparison:
    """A peer with its tuned settings, its mean metrics, and the model's lead over it in each compared metric.

    `by_seed` has the lead of each seed separately, in order.
    """

    name: str
    settings: dict[str, float]
    metrics: dict[str, float]
    leads: dict[str, Difference]
    by_seed: dict[str, tuple[Difference, ...]]


@dataclass(frozen=True)
class Outcome:
    """Metrics of a model and of popularity on `cases` test cases, the peers, and the training of each seed.

    The model's metrics are means over its seeds. `peers` has popularity first; `left_out` gives the reason for each
    missing peer. `new_share` is the share of relevant items that are not in training, which no method ranks.
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
    """Train the model of a plan and test it against its peers; without validation cases, train all its steps.

    Parameters
    ----------
    report
        Called after each step.
    seeds
        Number of models, with seeds counted up from that of the plan.
    largest
        Most items for which item-kNN and EASE are computed.
    told
        Called with the name of each peer before it is tuned.
    out
        Folder for vectors, scores and ranks (`weir.trainer.offline.exports`); None: no export.

    Raises
    ------
    TooFewError
        If there are too few interactions to train on.
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
    """Train a model with one seed, and rank the test cases with it."""
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
