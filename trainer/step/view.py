"""What a loss sees of a step: vectors of the rows and of the items that stand against them."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Population", "View"]


@dataclass(frozen=True, slots=True)
class Population:
    """What is known of the whole label matrix, for the losses that correct for popularity.

    `row_count` (b,) and `column_count` (b,) are the numbers of positives of each row's user and item, `positives` is
    the number of all, `shape` the numbers of users and items.
    """

    row_count: Tensor
    column_count: Tensor
    positives: float
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class View:
    """One rank's b rows, and the C columns that all rows of all ranks share.

    All vectors are as the search compares them; logits are their inner products over the `temperature`.

    Attributes
    ----------
    users, positives
        Vectors of the rows and of their positives, (b, d).
    columns
        Vectors of the shared negatives, (C, d).
    hits
        (row, column) pairs that are no negatives, (H, 2), each once.
    log_q_pos, log_q_columns
        Log-density of the pool at the positives, (b,), and at the columns, (C,).
    own
        Vectors of the negatives of every row's own, (b, N, d); N may be 0.
    companions
        Vectors of further positives of every row's user, (b, M, d); M may be 0.
    cached, log_q_cached
        Vectors (S, d) and log-density in the stream (S,) of the items of the cache; S may be 0.
    population
        Only for the losses that ask for it.
    generator
        For the losses that draw.
    labels
        Which pairs of users and "positives", (b,), or which of their combinations, (b, b), are positive; only for the
        losses that sample both kinds.
    """

    users: Tensor
    positives: Tensor
    columns: Tensor
    hits: Tensor
    log_q_pos: Tensor
    log_q_columns: Tensor
    own: Tensor
    companions: Tensor
    cached: Tensor
    log_q_cached: Tensor
    population: Population | None
    temperature: float
    generator: torch.Generator
    labels: Tensor | None = None

    @property
    def pos(self) -> Tensor:
        """Logits of the positives, (b,)."""
        return (self.users * self.positives).sum(1) / self.temperature

    @property
    def pooled(self) -> Tensor:
        """Logits of the shared negatives, (b, C)."""
        return self.users @ self.columns.T / self.temperature

    @property
    def keep(self) -> Tensor:
        """Tell which shared negatives take part in which row, (b, C)."""
        keep = torch.ones(len(self.users), len(self.columns), dtype=torch.bool, device=self.users.device)
        keep[self.hits[:, 0], self.hits[:, 1]] = False
        return keep

    @property
    def unlabelled(self) -> Tensor:
        """Logits of all negatives, shared and own, (b, C + N), hits included."""
        return torch.cat([self.pooled, self._against(self.own)], 1)

    @property
    def all_positives(self) -> Tensor:
        """Logits of the positives and of their companions, (b, 1 + M)."""
        return torch.cat([self.pos[:, None], self._against(self.companions)], 1)

    def _against(self, vectors: Tensor) -> Tensor:
        """Return the logits (b, N) of vectors (b, N, d)."""
        return torch.einsum("bd,bnd->bn", self.users, vectors) / self.temperature
