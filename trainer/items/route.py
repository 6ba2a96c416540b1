"""How the lines of some rows come from the ranks that keep them, and what belongs to these rows goes back."""

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
    """Connects the distinct rows that each rank asks for with those that it keeps; all ranks make and use it together.

    A row is asked for once by each rank at most, so that sums over ranks have one order: that of ranks.

    Parameters
    ----------
    workers
        The ranks.
    order
        Sorts the rows (n,) of this rank by place; None where they are in this order, or a single rank keeps all.
    send
        How many of them each rank keeps.
    receive
        How many rows each rank asks for here.
    asked
        These, rank by rank, as places among this rank's lines, (m,).
    """

    def __init__(
        self, workers: Workers, order: Tensor | None, send: list[int], receive: list[int], asked: Tensor
    ) -> None:
        self._workers, self._order, self._send, self._receive, self.asked = workers, order, send, receive, asked

    @classmethod
    def of(cls, rows: Tensor, places: Places, workers: Workers) -> Self:
        """Tell all ranks which of their rows this one asks for: `rows` (n,), distinct."""
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
        """Return how many rows this rank asks for."""
        return sum(self._send)

    def fetch(self, lines: Tensor) -> Tensor:
        """Return the lines (n, ...) of the rows that were asked for, given the lines that each rank keeps."""
        [fetched] = self.answered(lines.index_select(0, self.asked))
        return fetched

    def answered(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return what belongs to the rows that were asked for, (n, ...), given what belongs to `asked`, (m, ...)."""
        if self._workers.world_size == 1:
            return values
        received = self._workers.exchange(packed(values), self._receive, self._send)
        if self._order is not None:
            received = torch.empty_like(received).index_copy_(0, self._order, received)
        return unpacked(received, values)

    def push(self, values: Tensor) -> Tensor:
        """Send what belongs to the rows that were asked for, (n, ...), and return what belongs to `asked`, (m, ...)."""
        ordered = values if self._order is None else values.index_select(0, self._order)
        return self._workers.exchange(ordered, self._send, self._receive)

    def add(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add up what ranks have for the same rows, (n, ...), in the order of ranks.

        Returns the places (m,), among this rank's lines, of those that any rank asked for, each once, and the sums.
        """
        if self._workers.world_size == 1:
            return self.asked, values
        lines, sums, _ = self.add_beside(values, values.new_empty(0))
        return lines, sums

    def add_beside(self, values: Tensor, shared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add up beside them what all ranks share, (k,): this one gets its `Workers.part` of the sum."""
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
    """Return the lines of a rank's places `after` the table has grown, zeros for new rows, given those `before`.

    All ranks call it together. Some lines go at a time, for they would not fit beside both.
    """
    pairs = tuple((one, one.new_zeros(len(after.here), *one.shape[1:])) for one in lines)
    for first in range(0, int(before.cuts.diff().max()), _AT_ONCE):
        last = max(min(first + _AT_ONCE, len(before.here)), first)
        numbers = torch.arange(first, last, device=pairs[0][0].device)
        route = Route.of(before.rows_at(numbers), after, workers)
        for one, into in pairs:
            into[route.asked] = route.push(one[first:last])
    return tuple(into for _, into in pairs)
