"""Item embeddings, sharded over ranks, and their optimiser, which touches only the rows of a batch.

Each rank stores and updates a shard of the rows (`weir.trainer.items.placement`); a *line* is the local position of a
row in the shard. Ranks fetch the rows that they need from the shards, and send gradients back (`Route`).

The optimiser is row-wise Adagrad: it keeps one number per row, the sum of the mean squared gradients, and moves the row
by ``learning_rate * gradient / sqrt(sum)``. Dense Adam over the table would cost more than the rest of a step.

Source: Duchi et al., "Adaptive Subgradient Methods", JMLR 2011, with the diagonal shared within a row.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, Literal, Self, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.items.placement import Places, distinct_and_places
from weir.trainer.items.rows import PADDING, SHARED, Reader, TableRows, TouchedRows
from weir.trainer.ranks.shared_memory import packed, unpacked
from weir.trainer.ranks.workers import Workers

__all__ = ["Embeddings", "Line", "Route", "moved"]


_LINES_AT_ONCE: Final = 1 << 16
"""Rows that a rank sends at a time when the table grows."""


_EPSILON: Final = 1e-10

_AT_ONCE: Final = 1 << 14
"""Rows drawn at a time; each rank draws the rows of all ranks."""

Line = Literal["weight", "squares"]
"""Arrays of the table: embeddings and sums of squared gradients."""


class Route:
    """Fetches distinct rows from the shards that hold them, and sends values back to them; methods are collective.

    Each rank requests a row at most once, so sums over ranks have a fixed order, the order of ranks.

    Parameters
    ----------
    workers
        The ranks.
    order
        Permutation that sorts this rank's requested rows (n,) by place; None if they are sorted.
    send
        Number of rows requested from each rank.
    receive
        Number of rows that each rank requests from this rank.
    asked
        Lines (positions in this rank's shard) of the rows requested from this rank, rank by rank, (m,).
    """

    def __init__(
        self, workers: Workers, order: Tensor | None, send: list[int], receive: list[int], asked: Tensor
    ) -> None:
        self._workers, self._order, self._send, self._receive, self.asked = workers, order, send, receive, asked

    @classmethod
    def of(cls, rows: Tensor, places: Places, workers: Workers) -> Self:
        """Return the route for distinct rows (n,), which may differ between ranks."""
        if workers.world_size == 1:
            return cls(workers, None, [len(rows)], [len(rows)], rows)
        ones = [1] * workers.world_size
        requested, order = places.of(rows), None
        if not bool((requested[1:] > requested[:-1]).all()):
            requested, order = requested.sort()
        cuts = torch.searchsorted(requested, places.cuts.to(rows.device))
        send = cuts.diff()
        receive = workers.exchange(send, ones, ones).tolist()
        asked = workers.exchange(requested, send.tolist(), receive) - places.here.start
        return cls(workers, order, send.tolist(), receive, asked)

    def __len__(self) -> int:
        """Return the number of rows that this rank requests."""
        return sum(self._send)

    def fetch(self, lines: Tensor) -> Tensor:
        """Return the values of the requested rows, (n, ...), given the values of all `lines` of this rank's shard."""
        [fetched] = self.answered(lines.index_select(0, self.asked))
        return fetched

    def answered(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return values of the requested rows, (n, ...), given this rank's values for its `asked` lines, (m, ...)."""
        if self._workers.world_size == 1:
            return values
        received = self._workers.exchange(packed(values), self._receive, self._send)
        if self._order is not None:
            received = torch.empty_like(received).index_copy_(0, self._order, received)
        return unpacked(received, values)

    def push(self, values: Tensor) -> Tensor:
        """Send values of the requested rows, (n, ...), to their shards; return the values for `asked`, (m, ...)."""
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
        """Do `add`, and in the same exchange sum `shared` (k,) over ranks; also return this rank's part of that sum."""
        width, shares = math.prod(values.shape[1:]), [shared[share] for share in self._workers.shares(len(shared))]
        sizes = [len(share) for share in shares]
        rows = torch.split(values if self._order is None else values.index_select(0, self._order), self._send)
        pairs = zip(rows, shares, strict=True)
        sent = torch.cat([piece for part, share in pairs for piece in (part.flatten(), share)])
        send = [count * width + size for count, size in zip(self._send, sizes, strict=True)]
        receive = [count * width + sizes[self._workers.rank] for count in self._receive]
        received = torch.split(self._workers.exchange(sent, send, receive), receive)
        lines, number = distinct_and_places(self.asked)
        sums, total = values.new_zeros(len(lines), *values.shape[1:]), shared.new_zeros(sizes[self._workers.rank])
        for piece, into in zip(received, torch.split(number, self._receive), strict=True):
            part, own = piece.tensor_split([len(into) * width])
            sums.index_add_(0, into, part.view(len(into), *values.shape[1:]))
            total += own
        return lines, sums, total


def moved(lines: Iterable[Tensor], before: Places, after: Places, workers: Workers) -> tuple[Tensor, ...]:
    """Return this rank's shards of some arrays after the table grew from `before` to `after`; new rows are zeros.

    `lines` are the shards before. Collective. Rows are moved in chunks: copies of all would not fit in memory.
    """
    pairs = tuple((old, old.new_zeros(len(after.here), *old.shape[1:])) for old in lines)
    for first in range(0, int(before.cuts.diff().max()), _LINES_AT_ONCE):
        last = max(min(first + _LINES_AT_ONCE, len(before.here)), first)
        numbers = torch.arange(first, last, device=pairs[0][0].device)
        route = Route.of(before.rows_at(numbers), after, workers)
        for old, into in pairs:
            into[route.asked] = route.push(old[first:last])
    return tuple(into for _, into in pairs)


class Embeddings:
    """One rank's shard: embeddings `weight` (lines, dimension) and sums `squares` (lines,) of their squared gradients.

    A line is the position of a row in the shard; a single rank has all rows, in their order. `touched` tracks lines
    in which the embedding, or other data of the item, has changed.

    Parameters
    ----------
    weight
        Initial embeddings of this rank; row 0 is padding and must be zeros.
    squares
        Sums for the same rows; zeros if None.
    places
        The shard of this rank; all rows if None.
    workers
        The ranks that share the table; a single one if None.
    """

    def __init__(
        self,
        weight: Tensor,
        squares: Tensor | None = None,
        places: Places | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.places, self.workers = places or Places(len(weight)), workers or Workers()
        self.weight = weight
        self.squares = weight.new_zeros(len(weight)) if squares is None else squares
        self.touched = TouchedRows(len(weight))

    @classmethod
    def fresh(
        cls,
        capacity: int,
        dimension: int,
        generator: torch.Generator,
        device: torch.device,
        dtype: torch.dtype,
        *,
        scale: float = 1.0,
        workers: Workers | None = None,
    ) -> "Embeddings":
        """Return a table with a random shared row; all other rows are zeros until an item is admitted to them."""
        workers = workers or Workers()
        places = Places(capacity, workers.rank, workers.world_size)
        weight = torch.zeros(len(places.here), dimension, device=device, dtype=dtype)
        table = cls(weight, places=places, workers=workers)
        table.initialise(TableRows(np.array([SHARED])), generator, scale)
        return table

    @property
    def capacity(self) -> int:
        """Number of rows of the table, over all ranks."""
        return self.places.capacity

    def route(self, rows: Tensor) -> Route:
        """Return the `Route` to the shards of distinct rows (n,), which may differ between ranks; collective."""
        return Route.of(rows, self.places, self.workers)

    def kept(self, rows: Tensor) -> Tensor:
        """Return the embeddings (n, d) of rows (n,) in this rank's shard."""
        return self.weight.index_select(0, self.places.local(rows))

    def fetch(self, rows: Tensor, line: Line = "weight") -> Tensor:
        """Return the array `line` (a name) at distinct rows (n,). Collective, or by rank 0 in `Workers.first`."""
        self.workers.ask(line)
        return self.route(rows).fetch(self._of(line))

    def answer(self, question: str) -> None:
        """Join the `fetch` or `norms` that rank 0 calls in `Workers.first`, as its callback `answer`."""
        if question in get_args(Line):
            self.route(torch.empty(0, dtype=torch.int64, device=self.weight.device)).fetch(self._of(question))
        else:
            self._norms()

    def touched_here(self, reader: Reader) -> TableRows:
        """Return this rank's rows that have changed for a reader, (n,)."""
        return TableRows(self.places.rows_at(torch.from_numpy(self.touched.rows(reader))).numpy())

    def grow(self, capacity: int) -> None:
        """Append zero rows up to `capacity`; rows move between ranks, so this is collective."""
        before = self.places
        missing = capacity - before.capacity
        if not missing:
            return
        if before.ranks == 1:
            self.places = Places(capacity)
            self.weight = functional.pad(self.weight, (0, 0, 0, missing))
            self.squares = functional.pad(self.squares, (0, missing))
            self.touched.grow(capacity)
            return
        readers = self.touched.readers
        touched = {reader: self.workers.collect(torch.from_numpy(self.touched_here(reader))) for reader in readers}
        self.places = Places(capacity, before.rank, before.ranks)
        self.weight, self.squares = moved((self.weight, self.squares), before, self.places, self.workers)
        self.touched = TouchedRows(len(self.weight))
        for reader, rows in touched.items():
            self.touched.clear(reader)
            self.touch(rows, [reader])

    def initialise(self, rows: TableRows, generator: torch.Generator, scale: float = 1.0) -> None:
        """Draw embeddings of expected length `scale` for rows (n,) and reset their sums; alike on all ranks."""
        dimension = self.weight.shape[1]
        for first, last in pairwise(_blocks(len(rows))):
            drawn = torch.from_numpy(rows[first:last])
            values = torch.randn((last - first, dimension), generator=generator, dtype=torch.float64) / dimension**0.5
            own = self.places.own(drawn)
            index = self.places.local(drawn[own]).to(self.weight.device)
            self.weight[index] = (scale * values[own]).to(self.weight)
            self.squares[index] = 0
        self.touch(torch.from_numpy(rows))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the embeddings and sums of this rank's shard."""
        return {"weight": self.weight, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict` for the same shard, onto the current device."""
        self.weight, self.squares = (state[name].to(self.weight.device) for name in ("weight", "squares"))
        self.touched = TouchedRows(len(self.weight))

    def state_of(self, rows: TableRows, lines: Collection[Line] = get_args(Line)) -> dict[str, Tensor]:
        """Return the arrays named in `lines` at distinct rows (n,). Collective, or by rank 0 in `Workers.first`."""
        if not len(rows):  # their types and shapes are the same on every rank
            return {line: self._of(line)[:0] for line in lines}
        index = torch.from_numpy(rows).to(self.weight.device)
        return {line: self.fetch(index, line) for line in lines}

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_of` for rows (n,) of this rank."""
        index = self.places.local(torch.from_numpy(rows)).to(self.weight.device)
        for line in get_args(Line):
            self._of(line)[index] = state[line].to(self.weight)

    def norms(self, rows: TableRows | None = None) -> dict[str, Tensor]:
        """Return the Euclidean norms of weight and squares over `rows` (n,), or all rows.

        Collective, or called by rank 0 in `Workers.first`.
        """
        if rows is not None:
            return {name: torch.linalg.vector_norm(lines) for name, lines in self.state_of(rows).items()}
        self.workers.ask("norms")
        return dict(zip(get_args(Line), self._norms(), strict=True))

    def _norms(self) -> Tensor:
        """Return the norms of both arrays over all ranks; collective."""
        norms = torch.stack([torch.linalg.vector_norm(self._of(line)) for line in get_args(Line)])
        return cast(Tensor, torch.linalg.vector_norm(self.workers.gather(norms), dim=0))

    def _of(self, line: str) -> Tensor:
        """Return this rank's array of that name."""
        return cast(Tensor, getattr(self, line))

    def summed(self, route: Route, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (m,) of this shard with a gradient on any rank, and the sum of their gradients, (m, ...).

        `gradient` (n, ...) is the gradient of the route's rows on this rank. Collective.
        """
        lines, sums = route.add(gradient)
        return self.places.rows_at(lines), sums

    def adagrad_step(
        self, rows: Tensor, gradient: Tensor, learning_rate: float, memory: float = 1.0, decay: float = 0.0
    ) -> None:
        """Update distinct `rows` (n,) of this shard by their `gradient` (n, d); padding stays zeros.

        The sums are multiplied by `memory` first; below 1 the update is RMSprop, whose step size stops shrinking
        (Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012), except that the sum is not divided by 1 / (1 - memory).
        `decay` times the row is added to the gradient: an L2 penalty of decay / 2 times the row's square.
        """
        lines = self.places.local(rows)
        if decay:
            gradient = gradient + decay * self.weight[lines]
        padding = rows == PADDING
        squares = memory * self.squares[lines] + gradient.square().mean(1).masked_fill_(padding, 0)
        self.squares[lines] = squares
        lengths = (learning_rate / (squares.sqrt() + _EPSILON)).masked_fill_(padding, 0)
        self.weight.index_add_(0, lines, gradient * lengths[:, None], alpha=-1)
        self.touched.mark(lines.cpu().numpy())

    def touch(self, rows: Tensor, readers: Iterable[Reader] | None = None) -> None:
        """Mark rows (n,) as changed for some readers, or all; rows of other ranks are ignored."""
        self.touched.mark(self.places.local(rows[self.places.own(rows)]).numpy(), readers)


def _blocks(rows: int) -> Iterator[int]:
    """Yield the starts of blocks of rows, then the end of the last block, which includes any remainder.

    `torch.randn` draws 16 numbers at a time and a shorter rest differently; with these blocks, the numbers are the same
    as in one draw.
    """
    yield from range(0, max(rows - _AT_ONCE, 0) + 1, _AT_ONCE)
    yield rows
