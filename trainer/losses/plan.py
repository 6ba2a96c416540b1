"""Inputs of a softmax pass over the columns of a batch, besides the embeddings, and the loss of each row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.losses._logspace import softplus

__all__ = ["Plan", "row_loss"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs of a softmax pass, besides the embeddings.

    `hits` (H, 2) are the pairs outside the sum, int64, in any order, repetitions allowed; column d counts `times` (N,)
    times. The log-odds of a row are logsumexp over its kept columns of (logit + column_bias), minus the positive's
    logit, plus row_bias. A pass may hold the logits of `chunk_rows` rows at a time.
    """

    hits: Tensor
    times: Tensor
    column_bias: Tensor
    row_bias: Tensor
    improved: bool
    scale: float
    chunk_rows: int


def row_loss(log_odds: Tensor, kept: Tensor, improved: bool) -> tuple[Tensor, Tensor]:
    """Return the loss of each row and the size of its gradient, both 0 for rows without a negative."""
    empty = kept == 0
    if improved:
        pull = torch.sigmoid(log_odds - kept.clamp(min=1).to(log_odds.dtype).log())
        loss = pull * log_odds
    else:
        pull, loss = torch.sigmoid(log_odds), softplus(log_odds)
    return loss.masked_fill(empty, 0.0), pull.masked_fill(empty, 0.0)
