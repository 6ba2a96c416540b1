"""All-to-all route between rows and their shards: fetches rows from their ranks and sends gradients back."""

import math
from collections.abc import Iterable
from typing import Final, Self

import torch
from torch import Tensor

from weir.trainer.items.distinct import distinct_and_places
from weir.trainer.items.places import Places
from weir.trainer.ranks.packed import packed, unpacked
from weir.trainer.ranks.workers import Workers

__all__ = ["Route", "moved"]

_AT_ONCE: Final = 1 << 16
"""Rows that a rank sends at a time when the table grows."""


class Route:
    """Connects the distinct rows requested by each rank with the shards that hold them; collective.

    Each rank requests a row at most once, so sums over ranks have a fixed order: that of ranks.

    Parameters
    ----------
    workers
        The ranks.
    order
        Sorts this rank's requested rows (n,) by place; None if they are sorted, or a single rank holds all.
    send
        Number of rows requested from each rank.
    receive
        Number of rows that each rank requests here.
    asked
        Lines of the rows requested here, rank by rank, (m,).
    """

    def __init__(
        self, workers: Workers, order: Tensor | None, send: list[int], receive: list[int], asked: Tensor
    ) -> None:
        self._workers, self._order, self._send, self._receive, self.asked = workers, order, send, receive, asked

    @classmethod
    def of(cls, rows: Tensor, places: Places, workers: Workers) -> Self:
        """Request distinct rows (n,) of all ranks."""
        if workers.world_size == 1:
            return cls(workers, None, [len(rows)], [len(rows)], rows)
        ones = [1] * workers.world_size
        wanted, order = places.of(rows), None
        if not bool((wanted[1:] > wanted[:-1]).all()):
            wanted, order = wanted.sort()
        cuts = torch.searchsorted(wanted, places.cuts.to(rows.device))
        send = cuts.diff()
        receive = workers.exchange(send, ones, ones).tolist()
        asked = workers.exchange(wanted, send.tolist(), receive) - places.here.start
        return cls(workers, order, send.tolist(), receive, asked)

    def __len__(self) -> int:
        """Return the number of rows that this rank requests."""
        return sum(self._send)

    def fetch(self, lines: Tensor) -> Tensor:
        """Return the requested rows' lines, (n, ...), given the `lines` of this rank's shard."""
        [fetched] = self.answered(lines.index_select(0, self.asked))
        return fetched

    def answered(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return values of the requested rows, (n, ...), given each rank's values of its `asked` lines, (m, ...)."""
        if self._workers.world_size == 1:
            return values
        received = self._workers.exchange(packed(values), self._receive, self._send)
        if self._order is not None:
            received = torch.empty_like(received).index_copy_(0, self._order, received)
        return unpacked(received, values)

    def push(self, values: Tensor) -> Tensor:
        """Send values of the requested rows, (n, ...), to their shards; return those for `asked`, (m, ...)."""
        ordered = values if self._order is None else values.index_select(0, self._order)
        return self._workers.exchange(ordered, self._send, self._receive)

    def add(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the values of requested rows, (n, ...), over ranks, in the order of ranks.

        Returns the distinct requested lines of this shard, (m,), and the sums.
        """
        if self._workers.world_size == 1:
            return self.asked, values
        lines, sums, _ = self.add_beside(values, values.new_empty(0))
        return lines, sums

    def add_beside(self, values: Tensor, shared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Do `add`, and in the same exchange sum `shared` (k,) over ranks; return this rank's part of the sum, too."""
        width, shares = math.prod(values.shape[1:]), [shared[share] for share in self._workers.shares(len(shared))]
        sizes = [len(share) for share in shares]
        rows = torch.split(values if self._order is None else values.index_select(0, self._order), self._send)
        sent = torch.cat([one for part, share in zip(rows, shares, strict=True) for one in (part.flatten(), share)])
        send = [count * width + size for count, size in zip(self._send, sizes, strict=True)]
        receive = [count * width + sizes[self._workers.rank] for count in self._receive]
        came = torch.split(self._workers.exchange(sent, send, receive), receive)
        lines, number = distinct_and_places(self.asked)
        sums, total = values.new_zeros(len(lines), *values.shape[1:]), shared.new_zeros(sizes[self._workers.rank])
        for one, into in zip(came, torch.split(number, self._receive), strict=True):
            part, own = one.tensor_split([len(into) * width])
            sums.index_add_(0, into, part.view(len(into), *values.shape[1:]))
            total += own
        return lines, sums, total


def moved(lines: Iterable[Tensor], before: Places, after: Places, workers: Workers) -> tuple[Tensor, ...]:
    """Return this rank's lines after the table has grown from `before` to `after`, with zeros for new rows.

    Collective. Lines move in chunks, since copies of all would not fit in memory.
    """
    pairs = tuple((one, one.new_zeros(len(after.here), *one.shape[1:])) for one in lines)
    for first in range(0, int(before.cuts.diff().max()), _AT_ONCE):
        last = max(min(first + _AT_ONCE, len(before.here)), first)
        numbers = torch.arange(first, last, device=pairs[0][0].device)
        route = Route.of(before.rows_at(numbers), after, workers)
        for one, into in pairs:
            into[route.asked] = route.push(one[first:last])
    return tuple(into for _, into in pairs)
