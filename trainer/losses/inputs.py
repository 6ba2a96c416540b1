"""The inputs of a loss in a training step: vectors of users and items, and the scores of the second phase.

The second phase uses the same negatives as the first, hence the same corrections and masks
(`weir.trainer.losses.reference`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weir.trainer.losses.reference import exclude_positive, sampled_softmax

__all__ = ["LossInputs", "LossResult", "Population", "Rescored", "rescoring_loss"]


@dataclass(frozen=True, slots=True)
class Rescored:
    """Scores of the second phase for b rows: `pos` (b,) of the positives and `neg` (b, N) of the shared negatives.

    `keep` (b, N) is False where an item is not a negative of the row; `log_q_pos` (b,) and `log_q_neg` (N,) are as in
    `LossInputs`.
    """

    pos: Tensor
    neg: Tensor
    keep: Tensor
    log_q_pos: Tensor
    log_q_neg: Tensor


def rescoring_loss(scores: Rescored, correction: str) -> Tensor:
    """Return the losses (b,) of the second phase; rows without a negative have loss 0 and gradient 0."""
    improved = correction == "improved"
    return sampled_softmax(
        scores.pos,
        scores.neg,
        log_q_pos=scores.log_q_pos,
        log_q_neg=exclude_positive(scores.log_q_neg, scores.log_q_pos) if improved else scores.log_q_neg,
        keep=scores.keep,
        correction=correction,
    )


class LossResult(NamedTuple):
    """Losses (b,) of the rows; for resampling also the indices `drawn`, counted over the columns, then the cache."""

    losses: Tensor
    drawn: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Population:
    """Statistics of the whole label matrix (users x items), for losses that correct for popularity.

    `row_count` (b,) and `column_count` (b,) are the numbers of positives of each row's user and item, `positives` is
    the total number of positives, `shape` the number of users and of items.
    """

    row_count: Tensor
    column_count: Tensor
    positives: float
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of the loss for one rank's b rows.

    An optional input is None if the loss does not request it in `weir.trainer.settings.losses.LOSSES`. All vectors are
    normalised as in the search. Logits are inner products of vectors, divided by the `temperature`.

    Attributes
    ----------
    users, positives
        Vectors of the rows' users and of their positive items, (b, d).
    columns
        Vectors of the negatives shared by all rows of all ranks, (C, d).
    hits
        (row, column) pairs where the column is not a negative of the row, (H, 2), each once.
    times
        Multiplicity of each column, (C,); None: all 1. Only for losses that weight columns.
    log_q_pos, log_q_columns
        Log-density of the pool at the positives, (b,), and at the columns, (C,).
    own
        Vectors of each row's own negatives, (b, N, d).
    extra_positives
        Vectors of further positives of each row's user, (b, M, d).
    exposed, exposed_keep
        Vectors (b, E, d) of items that were shown beside each positive and not chosen, and a mask of valid items,
        (b, E). For the exposure loss, which is added to any main loss.
    cached, log_q_cached
        Vectors of the items in the cache of `resampled_softmax`, (S, d), and their log-density in the stream, (S,).
    population
        Statistics of the label matrix.
    generator
        Source of randomness for losses that sample.
    labels
        Only for losses that sample cells of the label matrix with both labels: whether the item of each row is a
        positive of its user, (b,), or whether each item is a positive of each user, (b, b).
    rescored
        Scores of the second phase. For the re-scoring loss, which is added to any main loss.
    """

    users: Tensor
    positives: Tensor
    temperature: float
    columns: Tensor | None = None
    hits: Tensor | None = None
    times: Tensor | None = None
    log_q_pos: Tensor | None = None
    log_q_columns: Tensor | None = None
    own: Tensor | None = None
    extra_positives: Tensor | None = None
    exposed: Tensor | None = None
    exposed_keep: Tensor | None = None
    cached: Tensor | None = None
    log_q_cached: Tensor | None = None
    population: Population | None = None
    generator: torch.Generator | None = None
    labels: Tensor | None = None
    rescored: Rescored | None = None

    def given(self, name: str) -> Any:
        """Return the input with this name.

        Raises
        ------
        ValueError
            If the input is None.
        """
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} must be given for this loss, got None")
        return value

    @property
    def pos(self) -> Tensor:
        """Logits of the positives, (b,)."""
        return (self.users * self.positives).sum(1) / self.temperature

    @property
    def pooled(self) -> Tensor:
        """Logits of the shared negatives, (b, C)."""
        columns: Tensor = self.given("columns")
        return self.users @ columns.T / self.temperature

    @property
    def keep(self) -> Tensor:
        """Booleans (b, C): True where a shared negative is a negative of the row."""
        hits, columns = self.given("hits"), self.given("columns")
        keep = torch.ones(len(self.users), len(columns), dtype=torch.bool, device=self.users.device)
        keep[hits[:, 0], hits[:, 1]] = False
        return keep

    @property
    def unlabelled(self) -> Tensor:
        """Logits of the shared and the own negatives, (b, C + N); accidental hits are not masked."""
        shared = [] if self.columns is None else [self.pooled]
        return torch.cat([*shared, *self._by_row(self.own)], 1)

    @property
    def all_positives(self) -> Tensor:
        """Logits of the positives and the extra positives, (b, 1 + M)."""
        return torch.cat([self.pos[:, None], *self._by_row(self.extra_positives)], 1)

    def _by_row(self, vectors: Tensor | None) -> list[Tensor]:
        """Return the logits (b, N) of vectors (b, N, d) in a list; empty for None."""
        return [] if vectors is None else [torch.einsum("bd,bnd->bn", self.users, vectors) / self.temperature]
