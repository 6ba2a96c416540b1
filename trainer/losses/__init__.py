"""Training losses as pure functions of tensors: one loss per row, everything in the log domain.

The file of a loss also holds its adapter for the training step (``gbce`` and ``gbce_of``), which
`trainer.loss_config.LOSSES` names. `trainer.losses.reference` holds the softmax losses on
whole matrices of logits.
"""

from trainer.losses.binary import bce, gbce
from trainer.losses.contrastive import debiased_contrastive, debiased_positive, hard_contrastive
from trainer.losses.densities import mixture_log_q
from trainer.losses.item_cache import ItemCache
from trainer.losses.pairwise import bpr, dpl
from trainer.losses.pointwise import pointwise_in_batch, pointwise_labelled, sogram
from trainer.losses.reference import exclude_positive, full_softmax, info_nce, sampled_softmax
from trainer.losses.resampling import resample, resampled_softmax, resampling_log_weights
from trainer.losses.softmax import sampled_softmax_in_batch

__all__ = [
    "ItemCache",
    "bce",
    "bpr",
    "debiased_contrastive",
    "debiased_positive",
    "dpl",
    "exclude_positive",
    "full_softmax",
    "gbce",
    "hard_contrastive",
    "info_nce",
    "mixture_log_q",
    "pointwise_in_batch",
    "pointwise_labelled",
    "resample",
    "resampled_softmax",
    "resampling_log_weights",
    "sampled_softmax",
    "sampled_softmax_in_batch",
    "sogram",
]
