"""From the settings to the losses of a step: the function that `weir.trainer.loss_config.LOSSES` names, called."""

from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from weir.trainer.config import TrainerConfig
from weir.trainer.losses.exposure import exposure_of
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.losses.rescoring import rescoring_loss

__all__ = ["step_loss"]


def step_loss(step: LossInputs, config: TrainerConfig) -> LossResult:
    """Return the losses (b,) of a step by `config.loss`; without rows, none.

    A lone row, as the last batch of a window may hold, gives a loss of whole batches nothing to compare: its loss is 0.
    The terms of exposure and of the second phase, where there are any, come on top of any loss.
    """
    needs = config.loss.needs
    if len(step.users) < (2 if needs.user_counts else 1):
        return LossResult(0 * step.users.sum(1))
    function: Any = resolve_name(f"weir.trainer.losses.{needs.function}")
    losses: Tensor | LossResult = function(step, config)
    result = losses if isinstance(losses, LossResult) else LossResult(losses)
    terms = [] if step.exposed is None else [exposure_of(step, config)]
    terms += [] if step.rescored is None else [rescoring_loss(step.rescored, config.negatives.correction)]
    return result._replace(losses=sum(terms, result.losses))
