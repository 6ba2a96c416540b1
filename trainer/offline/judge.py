"""One model against popularity: trained, stopped by validation, and tested on the same cases."""

from dataclasses import dataclass

from trainer.offline.compare import Plan
from trainer.offline.evaluator import Difference, EvaluationResult
from trainer.offline.fit import Fit, StepReport, fit
from trainer.offline.model import OfflineModel
from trainer.ranks.workers import deterministic

__all__ = ["Outcome", "against_popularity"]


@dataclass(frozen=True)
class Outcome:
    """The metrics of both on so many test `cases`, the model's lead in the headline metric, and its training."""

    cases: int
    model: EvaluationResult
    popularity: EvaluationResult
    difference: Difference
    training: Fit


def against_popularity(plan: Plan, report: StepReport | None = None) -> Outcome:
    """Train the model of a plan and test it beside popularity; without validation cases it trains all of its steps.

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
        ranked, popular = test.rank(model), test.rank_by_popularity()
    return Outcome(
        len(test.cases), test.result(ranked), test.result(popular), test.difference(ranked, popular), trained
    )
