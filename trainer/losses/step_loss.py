"""From the settings to the losses of a step: the function that the table of losses names, and the term of exposure.

Source: McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior" (1973): the probability of a choice, given
the items on offer. With one item beside the chosen one it is `bpr` for "click > skip above" of Joachims et
al., "Accurately Interpreting Clickthrough Data as Implicit Feedback" (SIGIR 2005).
"""

from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor

from weir.trainer.losses.inputs import LossInputs, LossResult, rescoring_loss
from weir.trainer.losses.reference import info_nce
from weir.trainer.settings.trainer import TrainerConfig

__all__ = ["step_loss"]


def exposure_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the weighted exposure loss (b,), added to the main loss; 0 for rows without shown alternatives.

    It needs no log Q, as nothing is sampled: the list of shown items is known, so the probability that a list shows an
    item cancels.
    """
    exposed = step.given("exposed")
    logits = torch.einsum("bd,bed->be", step.users, exposed) / step.temperature
    return config.negatives.exposed_weight * info_nce(step.pos, logits, step.given("exposed_keep"))


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
