"""Protocol of negative samplers (a seeded draw and its density), and the mask of accidental hits.

Every rank knows the whole batch and uses the same seed, so all ranks draw the same negatives. In-batch negatives over
all ranks are therefore the positives of the batch, without communication.
"""

from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from weir.trainer.items.placement import distinct, order_of, where

__all__ = ["Draw", "Pool", "RowList", "RowValues", "Sampler", "accidental_hits", "below_one"]

_BELOW_ONE: Final = -1e-6


class Pool(NamedTuple):
    """Size of a global batch: the number of real positives, and the number of distinct items among them."""

    positives: int
    distinct: int

    @classmethod
    def of(cls, positives: Tensor, real: Tensor) -> "Pool":
        """Count the positives (B,) where `real` (B,) is True."""
        return cls(int(real.sum()), len(distinct(positives[real])))

    @property
    def others(self) -> "Pool":
        """The pool as one row sees it, without the row's own positive, which is certain and not drawn."""
        return Pool(max(self.positives - 1, 0), self.distinct)


class Draw(NamedTuple):
    """Negatives of a step: table rows `items`, shared (N,) or by row (B, N); `real`, same shape, False for padding."""

    items: Tensor
    real: Tensor


class RowValues(Protocol):
    """A number for each table row: a tensor (capacity,), or an object that computes the requested numbers."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Return the numbers of the given rows, in their shape."""
        ...


class RowList(Protocol):
    """V table rows in some order: a tensor (V,), or an object that computes the requested rows."""

    def __len__(self) -> int:
        """Return V, the number of rows."""
        ...

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Return the rows at positions `index` in [0, V), in its shape."""
        ...


class Sampler(Protocol):
    """Draws the negatives of a step and returns their log-probability."""

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Draw negatives for a batch.

        Parameters
        ----------
        positives
            Table rows of the global batch's positives, (B,), int64.
        real
            Booleans (B,): False for padding.
        generator
            Source of randomness, on the CPU.

        Returns
        -------
        Draw
            On the device of `positives`.
        """

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the log-probability that one negative of the step is each of `items` (any shape).

        `pool` is the size of the step's batch, as a whole or as one row sees it (`Pool.others`).
        """

    def log_q_own(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the log-probability of a row's own positive, for `weir.trainer.losses.exclude_positive`; below 0.

        The default is `log_q`. Samplers override it if the row's own positive is certain to be among the negatives and
        counts once.
        """
        return below_one(self.log_q(items, pool))


def below_one(log_q: Tensor) -> Tensor:
    """Clamp log-densities to at most -1e-6, so that a row whose positive is the only candidate is no error."""
    return log_q.clamp(max=_BELOW_ONE)


def accidental_hits(columns: Tensor, forbidden: Tensor) -> Tensor:
    """Return the (row, column) pairs where the column must be masked as a negative of the row; each once.

    Parameters
    ----------
    columns
        Items (C,), numbered from 0 within a small set, such as the distinct rows of the batch.
    forbidden
        Items (b, F), in the same numbering, that must not be negatives of the row: the row's positive and, if masked,
        its known positives. -1 stands for items outside the set, which mask nothing.

    Returns
    -------
    Tensor
        (row, column) pairs, (H, 2), by row. Time and memory are O(C log C + b F + P log P + H), where P is the number
        of forbidden items that are columns: no (b, C) matrix is made.
    """
    size = int(columns.max()) + 1 if len(columns) else 0
    # One extra, always empty count: for items beyond the columns and, as index -1, for -1.
    times = torch.bincount(columns, minlength=size + 1)
    held = where(times[forbidden.clamp(max=size)].flatten() > 0)
    # Pack each pair into one integer: the row above these bits, the item in them.
    bits = size.bit_length()
    every = forbidden + (torch.arange(len(forbidden), device=forbidden.device) << bits)[:, None]
    pairs = distinct(every.flatten().index_select(0, held))
    rows, items = pairs >> bits, pairs & ((1 << bits) - 1)
    # In this order the columns of an item are adjacent.
    order, firsts = order_of(columns), (times.cumsum(0) - times).index_select(0, items)
    if int(times.max()) > 1:
        rows, firsts = _each_copy(rows, firsts, times[items])
    return torch.stack([rows, order.index_select(0, firsts)], 1)


def _each_copy(rows: Tensor, firsts: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each row (h,) `times` (h,) times, with the positions `firsts` (h,), `firsts` + 1, and so on."""
    starts = firsts - (times.cumsum(0) - times)
    places = starts.repeat_interleave(times)
    return rows.repeat_interleave(times), places.add_(torch.arange(len(places), device=places.device))
