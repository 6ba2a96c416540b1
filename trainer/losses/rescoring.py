"""Re-scoring loss of the second phase: a sampled softmax over its scores of the shared negatives.

Corrections and masks are those of the first phase (Khrylchenko et al., RecSys 2025: `weir.trainer.losses.reference`),
since the negatives are drawn from the same pool.
"""

from dataclasses import dataclass

from torch import Tensor

from weir.trainer.losses.reference import exclude_positive, sampled_softmax

__all__ = ["Rescored", "rescoring_loss"]


@dataclass(frozen=True, slots=True)
class Rescored:
    """Scores of the second phase for b rows: `pos` (b,) of their positives and `neg` (b, N) of the negatives.

    `keep` (b, N) is False where an item is not a negative of the row; `log_q_pos` (b,) and `log_q_neg` (N,) are as in
    `LossInputs`.
    """

    pos: Tensor
    neg: Tensor
    keep: Tensor
    log_q_pos: Tensor
    log_q_neg: Tensor


def rescoring_loss(scores: Rescored, correction: str) -> Tensor:
    """Return the losses (b,); rows without a negative have loss 0 and gradient 0."""
    improved = correction == "improved"
    return sampled_softmax(
        scores.pos,
        scores.neg,
        log_q_pos=scores.log_q_pos,
        log_q_neg=exclude_positive(scores.log_q_neg, scores.log_q_pos) if improved else scores.log_q_neg,
        keep=scores.keep,
        correction=correction,
    )
