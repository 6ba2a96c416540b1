"""The term of exposure: a chosen item against what was shown beside it and passed over.

Source: McFadden, "Conditional Logit Analysis of Qualitative Choice Behavior" (1973): the probability of a choice, given
what there was to choose from. With one item beside the chosen one it is `bpr` for "click > skip above" of Joachims et
al., "Accurately Interpreting Clickthrough Data as Implicit Feedback" (SIGIR 2005).
"""

import torch
from torch import Tensor

from weir.trainer.config import TrainerConfig
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.losses.reference import info_nce


def exposure_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the term (b,), weighted; 0 for a row beside whose positive nothing was shown.

    It is no sampled softmax, and has no log Q: nothing was drawn. What there was to choose from is known, so the
    probability that a list shows an item is in the condition, and cancels.
    """
    exposed = step.given("exposed")
    logits = torch.einsum("bd,bed->be", step.users, exposed) / step.temperature
    return config.negatives.exposed_weight * info_nce(step.pos, logits, step.given("exposed_keep"))
