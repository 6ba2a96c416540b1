"""The density of the negatives that a configuration asks for."""

import math

from torch import Tensor

from trainer.config import NegativesConfig
from trainer.losses import mixture_log_q

__all__ = ["log_density"]


def log_density(config: NegativesConfig, log_q: Tensor, in_batch: int, live: int) -> Tensor:
    """Return the log-probability that a column of the step holds an item.

    Parameters
    ----------
    config
        Which sources take part.
    log_q
        Log-probability that the stream carries each item, (n,).
    in_batch
        The number of positives in the global batch.
    live
        The number of rows that items own, of which uniform draws take one.

    Returns
    -------
    Tensor
        (n,): the density of the mixture, whichever source a column came from. Below 0 for a lone item too.
    """
    log_uniform = -math.log(max(live, 2))
    return mixture_log_q(log_q, log_uniform, in_batch if config.in_batch else 0, config.uniform)
