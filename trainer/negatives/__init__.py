"""Negative samplers: each draws the negatives of a step and returns their sampling density (log Q)."""

from weir.trainer.negatives.bayesian import bayesian_choice
from weir.trainer.negatives.in_batch import InBatch
from weir.trainer.negatives.mixed import Cached, Mixed, shared_pool
from weir.trainer.negatives.sampler import Draw, Pool, RowList, RowValues, Sampler, accidental_hits
from weir.trainer.negatives.uniform import PerRow, Uniform, draw_uniform

__all__ = [
    "Cached",
    "Draw",
    "InBatch",
    "Mixed",
    "PerRow",
    "Pool",
    "RowList",
    "RowValues",
    "Sampler",
    "Uniform",
    "accidental_hits",
    "bayesian_choice",
    "draw_uniform",
    "shared_pool",
]
