"""The losses of a training step: the main loss of the settings, the exposure loss and the re-scoring loss.

The exposure loss is the conditional logit: the probability of the chosen item among the items shown. With one other
item it is `bpr` on the preference "click > skip above" of Joachims et al.

Sources: McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior", 1973; Joachims et al., "Accurately
Interpreting Clickthrough Data as Implicit Feedback", SIGIR 2005.
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

    No log Q is needed, since nothing is sampled: the list of shown items is given, so the probability that a list shows
    an item cancels.
    """
    exposed = step.given("exposed")
    logits = torch.einsum("bd,bed->be", step.users, exposed) / step.temperature
    return config.negatives.exposed_weight * info_nce(step.pos, logits, step.given("exposed_keep"))


def step_loss(step: LossInputs, config: TrainerConfig) -> LossResult:
    """Return the losses (b,) of a step by `config.loss`, with the exposure and re-scoring losses added if configured.

    b may be 0. A single row, as in the last batch of a window, has loss 0 if the loss compares the rows of a batch.
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
