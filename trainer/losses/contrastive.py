"""Contrastive losses over one positive and many negatives."""

from torch import Tensor

from trainer.losses.sampled_softmax import sampled_softmax


def info_nce(pos: Tensor, neg: Tensor, keep: Tensor | None = None) -> Tensor:
    """InfoNCE, which is the multi-class N-pair loss: -log(e^f(p) / (e^f(p) + sum_kept e^f(d))), (B,).

    Source: equation 1 of Troeshestova and Isachenko, "Mitigating Distributional Biases in Contrastive Learning".
    The same as `sampled_softmax` without correction, whose parameters and errors it shares.
    """
    return sampled_softmax(pos, neg, keep=keep, correction="none")
