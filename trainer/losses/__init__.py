"""Training losses and samplers as pure functions of tensors: one loss per row, everything in the log domain."""

from trainer.losses.binary import bce, gbce
from trainer.losses.contrastive import info_nce
from trainer.losses.sampled_softmax import exclude_positive, full_softmax, mixture_log_q, sampled_softmax

__all__ = [
    "bce",
    "exclude_positive",
    "full_softmax",
    "gbce",
    "info_nce",
    "mixture_log_q",
    "sampled_softmax",
]
