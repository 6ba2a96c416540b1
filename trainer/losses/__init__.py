"""Training losses as pure functions of tensors: one loss per row, everything in the log domain.

Beside each loss, such as ``gbce``, is its adapter for the training step, ``gbce_of``; the table of adapters is
`weir.trainer.settings.losses.LOSSES`. `weir.trainer.losses.reference` has the softmax losses on whole matrices of
logits.
"""

from weir.trainer.losses.binary import bce, gbce
from weir.trainer.losses.contrastive import debiased_contrastive, debiased_positive, hard_contrastive
from weir.trainer.losses.pairwise import bpr, dpl
from weir.trainer.losses.pointwise import pointwise_in_batch, pointwise_labelled, sogram
from weir.trainer.losses.reference import exclude_positive, full_softmax, info_nce, mixture_log_q, sampled_softmax
from weir.trainer.losses.resampling import ItemCache, resample, resampled_softmax, resampling_log_weights
from weir.trainer.losses.softmax import sampled_softmax_in_batch

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
