"""The sampler that a configuration asks for."""

from torch import Tensor

from trainer.config import NegativesConfig
from trainer.negatives.in_batch import InBatch
from trainer.negatives.mixed import Mixed
from trainer.negatives.sampler import Sampler
from trainer.negatives.uniform import Uniform

__all__ = ["shared_pool"]


def shared_pool(config: NegativesConfig, stream_log_q: Tensor, live: Tensor) -> Sampler:
    """Return the sampler of the negatives that all rows share.

    Parameters
    ----------
    config
        Which sources are used; without any, the pool is empty.
    stream_log_q
        Log-probability that the stream carries each item, by table row, (capacity,).
    live
        Rows that items own, (V,).
    """
    in_batch = InBatch(stream_log_q, config.in_batch_limit, config.deduplicate)
    uniform = Uniform(live, config.uniform)
    if not config.in_batch:
        return uniform
    return Mixed(in_batch, uniform, config.density) if config.uniform else in_batch
