"""Exposure loss: the chosen item against the items that were shown beside it and not chosen.

Source: McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior" (1973): the probability of a choice, given
the items on offer. With one item beside the chosen one it is `bpr` for "click > skip above" of Joachims et
al., "Accurately Interpreting Clickthrough Data as Implicit Feedback" (SIGIR 2005).
"""

import torch
from torch import Tensor

from weir.trainer.config import TrainerConfig
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.reference import info_nce


def exposure_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the weighted exposure loss (b,), added to the main loss; 0 for rows without shown alternatives.

    It needs no log Q, as nothing is sampled: the list of shown items is known, so the probability that a list shows an
    item cancels.
    """
    exposed = step.given("exposed")
    logits = torch.einsum("bd,bed->be", step.users, exposed) / step.temperature
    return config.negatives.exposed_weight * info_nce(step.pos, logits, step.given("exposed_keep"))
