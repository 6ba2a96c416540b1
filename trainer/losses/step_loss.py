"""Loss of a training step, by the function that `weir.trainer.loss_config.LOSSES` names for the settings."""

from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from weir.trainer.config import TrainerConfig
from weir.trainer.losses.exposure import exposure_of
from weir.trainer.losses.inputs import LossInputs, LossResult
from weir.trainer.losses.rescoring import rescoring_loss

__all__ = ["step_loss"]


def step_loss(step: LossInputs, config: TrainerConfig) -> LossResult:
    """Return the losses (b,) of a step by `config.loss`; a batch without rows has none.

    A single row, as the last batch of a window may hold, has loss 0 if the loss compares rows of a batch. The exposure
    and re-scoring losses, where configured, are added to any loss.
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
