"""Training losses and samplers as pure functions of tensors: one loss per row, everything in the log domain."""

from trainer.losses.binary import bce, gbce
from trainer.losses.chunked import sampled_softmax_in_batch
from trainer.losses.contrastive import debiased_contrastive, debiased_positive, hard_contrastive, info_nce
from trainer.losses.pairwise import bpr, dpl
from trainer.losses.pointwise import pointwise_in_batch, pointwise_labelled, sogram
from trainer.losses.resampling import ItemCache, resample, resampled_softmax, resampling_log_weights
from trainer.losses.sampled_softmax import exclude_positive, full_softmax, mixture_log_q, sampled_softmax

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
