"""Samplers of negatives: each draws the negatives of a step and states the density that they were drawn with."""

from trainer.negatives.density import log_density
from trainer.negatives.in_batch import InBatch
from trainer.negatives.masking import keep_mask
from trainer.negatives.mixed import Mixed
from trainer.negatives.sampler import Draw, Pool, Sampler
from trainer.negatives.uniform import PerRow, Uniform, draw_uniform

__all__ = [
    "Draw",
    "InBatch",
    "Mixed",
    "PerRow",
    "Pool",
    "Sampler",
    "Uniform",
    "draw_uniform",
    "keep_mask",
    "log_density",
]
