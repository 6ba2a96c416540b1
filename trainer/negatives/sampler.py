"""What every sampler of negatives offers: a seeded draw, and the density that the draw really has.

Every rank knows the whole batch and uses the same seed, so all ranks form the same negatives. In-batch negatives
"gathered across ranks" are therefore just the positives of the batch: nothing is sent. Which of
them are no negatives of a row is decided here, too.
"""

from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from weir.trainer.items.distinct import distinct, order_of, where

__all__ = ["Draw", "Pool", "RowList", "RowValues", "Sampler", "accidental_hits", "below_one"]

_BELOW_ONE: Final = -1e-6


class Pool(NamedTuple):
    """The positives of a global batch in two numbers: how many are real, and how many different items they are."""

    positives: int
    distinct: int

    @classmethod
    def of(cls, positives: Tensor, real: Tensor) -> "Pool":
        """Count the positives (B,) where `real` (B,) is True."""
        return cls(int(real.sum()), len(distinct(positives[real])))

    @property
    def others(self) -> "Pool":
        """The pool as one of its rows sees it: its own positive is there for certain, only the others are drawn."""
        return Pool(max(self.positives - 1, 0), self.distinct)


class Draw(NamedTuple):
    """Negatives of one step: table rows `items`, (N,) for all rows or (B, N) by row; `real` (same) False = padding."""

    items: Tensor
    real: Tensor


class RowValues(Protocol):
    """A number for each row of the table: a tensor (capacity,), or what computes those that are asked for."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Return the numbers of rows, of their shape."""
        ...


class RowList(Protocol):
    """Table rows in some order, V of them: a tensor (V,), or what computes those that are asked for."""

    def __len__(self) -> int:
        """Return V."""
        ...

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Return the rows with some numbers from 0, of their shape."""
        ...


class Sampler(Protocol):
    """Draws the negatives of a step and knows how likely each was."""

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Draw negatives for a batch.

        Parameters
        ----------
        positives
            Table rows of the global batch's positives, (B,), int64.
        real
            Which of them are no padding, (B,).
        generator
            Source of randomness, on the CPU.

        Returns
        -------
        Draw
            On the device of `positives`.
        """

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the log-probability that one negative of the step is each of `items` (any shape).

        `pool` is the batch that the step draws for: as a whole, or as one of its rows sees it (`Pool.others`).
        """

    def log_q_own(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the same for a row's own positive, which `weir.trainer.losses.exclude_positive` takes out; below 0.

        It differs from `log_q` where the row's own positive is among the negatives for certain and counts once; draws
        that do not look at the positives keep this one.
        """
        return below_one(self.log_q(items, pool))


def below_one(log_q: Tensor) -> Tensor:
    """Keep densities below 1: a row whose positive is all that can be drawn has no negatives, and is no error."""
    return log_q.clamp(max=_BELOW_ONE)


def accidental_hits(columns: Tensor, forbidden: Tensor) -> Tensor:
    """List the columns that are no negatives of a row, as pairs; each once.

    Parameters
    ----------
    columns
        Items (C,) as numbers from 0 of a small set, such as the distinct rows of the batch.
    forbidden
        Items (b, F), with the same numbers, that must not be negatives of the row: its positive, and, where they
        are masked, its known positives. An item that is no column, such as -1 for one outside the set, masks nothing.

    Returns
    -------
    Tensor
        (row, column) pairs, (H, 2), by row. Time and memory grow with C log C + b F + P log P + H, where P of the
        forbidden items are columns: no (b, C) matrix is made.
    """
    size = int(columns.max()) + 1 if len(columns) else 0
    # One more, never held: for items beyond the columns, and, counted from the end, for -1.
    times = torch.bincount(columns, minlength=size + 1)
    held = where(times[forbidden.clamp(max=size)].flatten() > 0)
    # One number for each pair: the row above these bits, the item in them.
    bits = size.bit_length()
    every = forbidden + (torch.arange(len(forbidden), device=forbidden.device) << bits)[:, None]
    pairs = distinct(every.flatten().index_select(0, held))
    rows, items = pairs >> bits, pairs & ((1 << bits) - 1)
    # The columns of one item are neighbours in this order.
    order, firsts = order_of(columns), (times.cumsum(0) - times).index_select(0, items)
    if int(times.max()) > 1:
        rows, firsts = _each_copy(rows, firsts, times[items])
    return torch.stack([rows, order.index_select(0, firsts)], 1)


def _each_copy(rows: Tensor, firsts: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat rows (h,) as often as they say, (h,), and count on from their `firsts` (h,)."""
    starts = firsts - (times.cumsum(0) - times)
    places = starts.repeat_interleave(times)
    return rows.repeat_interleave(times), places.add_(torch.arange(len(places), device=places.device))
