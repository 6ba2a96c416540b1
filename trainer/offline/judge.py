"""One model against the simple methods: trained, stopped by validation, and tested on the same cases."""

from dataclasses import dataclass

from trainer.offline.compare import Plan
from trainer.offline.evaluator import Difference, EvaluationResult, Evaluator
from trainer.offline.fit import Fit, StepReport, fit
from trainer.offline.model import OfflineModel
from trainer.offline.peers.contest import LARGEST, Contest, Peer, PeerReport
from trainer.ranking import Ranked, means
from trainer.ranks.workers import deterministic

__all__ = ["Comparison", "Outcome", "against_peers"]


@dataclass(frozen=True)
class Comparison:
    """A peer with the settings that validation chose, its means, and the model's lead in each compared metric."""

    name: str
    settings: dict[str, float]
    metrics: dict[str, float]
    leads: dict[str, Difference]


@dataclass(frozen=True)
class Outcome:
    """The metrics of a model and of popularity on so many test `cases`, the peers, and the model's training.

    `peers` has popularity first; `left_out` says why others are missing.
    """

    cases: int
    headline: str
    model: EvaluationResult
    popularity: EvaluationResult
    peers: tuple[Comparison, ...]
    left_out: dict[str, str]
    training: Fit

    @property
    def difference(self) -> Difference:
        """The model's lead over popularity in the headline metric."""
        return self.peers[0].leads[self.headline]


def against_peers(
    plan: Plan, report: StepReport | None = None, *, largest: int = LARGEST, told: PeerReport | None = None
) -> Outcome:
    """Train the model of a plan and test it beside its peers; without validation cases it trains all of its steps.

    Parameters
    ----------
    report
        Called after each step.
    largest
        Most items of which item-kNN and EASE are made.
    told
        Called with the name of each peer before it is tuned.

    Raises
    ------
    TooFewError
        If there is nothing to train on.
    ValueError
        If the loss turns NaN or infinite.
    """
    validation, test = plan.evaluators()
    with deterministic():
        model = OfflineModel.fresh(plan.base, plan.interactions, plan.split.train)
        held_out = validation if len(validation.cases) else None
        trained = fit(model, plan.interactions, plan.split.train, plan.budget, validation=held_out, report=report)
        ranked = test.rank(model)
    contest = Contest(plan.interactions, plan.split.train, plan.rules, largest)
    peers = contest.run(validation, test, told)
    return Outcome(
        len(test.cases),
        plan.rules.headline,
        test.result(ranked),
        test.result(peers[0].ranked),
        tuple(_compared(test, ranked, peer) for peer in peers),
        contest.left_out,
        trained,
    )


def _compared(test: Evaluator, model: Ranked, peer: Peer) -> Comparison:
    leads = {metric: test.difference(model, peer.ranked, metric) for metric in test.rules.compared}
    return Comparison(peer.name, peer.settings, means(peer.ranked, test.rules.cutoffs), leads)
