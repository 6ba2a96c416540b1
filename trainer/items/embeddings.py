"""Item embeddings, their exchange between ranks, and their optimiser, which touches only the rows of a batch.

Row-wise Adagrad keeps one number per row, the sum of the mean squared gradients, and moves the row by
``learning_rate * gradient / sqrt(sum)``: Duchi et al., "Adaptive Subgradient Methods", JMLR 2011, with the
diagonal shared within a row. Dense Adam over the table would cost more than the rest of a step.

Each rank stores and updates a shard of the rows (`weir.trainer.items.placement`); a *line* is the local position of a
row in it. Rows are fetched by the ranks that need them, and their gradients sent back
(`weir.trainer.items.embeddings`).
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
    for first in range(0, int(before.cuts.diff().max()), _LINES_AT_ONCE):
        last = max(min(first + _LINES_AT_ONCE, len(before.here)), first)
        numbers = torch.arange(first, last, device=pairs[0][0].device)
        route = Route.of(before.rows_at(numbers), after, workers)
        for one, into in pairs:
            into[route.asked] = route.push(one[first:last])
    return tuple(into for _, into in pairs)


class Embeddings:
    """One rank's shard: embeddings `weight` (lines, dimension) and sums `squares` (lines,) of their squared gradients.

    A single rank has all rows, in their order. `touched` are the lines of this rank whose embedding, or data stored
    beside it, has changed.

    Parameters
    ----------
    weight
        Initial embeddings of this rank; row 0 is padding and must be zeros.
    squares
        Sums for the same rows; zeros if None.
    places
        The shard: which rows the lines hold; all rows if None.
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
        """Rows of the table, over all ranks."""
        return self.places.capacity

    def route(self, rows: Tensor) -> Route:
        """Return the route for distinct rows (n,), different ones on each rank, to their shards; collective."""
        return Route.of(rows, self.places, self.workers)

    def kept(self, rows: Tensor) -> Tensor:
        """Return the embeddings (n, d) of rows (n,) in this rank's shard."""
        return self.weight.index_select(0, self.places.local(rows))

    def fetch(self, rows: Tensor, line: Line = "weight") -> Tensor:
        """Return values of distinct rows (n,), (n, ...); collective, or called by rank 0 in `Workers.first`."""
        self.workers.ask(line)
        return self.route(rows).fetch(self._of(line))

    def answer(self, question: str) -> None:
        """Serve a `fetch` or `norms` of rank 0, as the callback of `Workers.first`."""
        if question in get_args(Line):
            self.route(torch.empty(0, dtype=torch.int64, device=self.weight.device)).fetch(self._of(question))
        else:
            self._norms()

    def touched_here(self, reader: Reader) -> TableRows:
        """Return this rank's rows that have changed since the reader's last `clear`, (n,)."""
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
        """Draw new vectors of expected length `scale` for rows and reset their sums; alike on all ranks."""
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
        """Return embeddings and sums, or one of them, for distinct rows (n,) of all ranks; called as `fetch`."""
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
        """Return the Euclidean norms of weight and squares, over some rows (n,) or all; called as `fetch`."""
        if rows is not None:
            return {name: torch.linalg.vector_norm(lines) for name, lines in self.state_of(rows).items()}
        self.workers.ask("norms")
        return dict(zip(get_args(Line), self._norms(), strict=True))

    def _norms(self) -> Tensor:
        norms = torch.stack([torch.linalg.vector_norm(self._of(line)) for line in get_args(Line)])
        return cast(Tensor, torch.linalg.vector_norm(self.workers.gather(norms), dim=0))

    def _of(self, line: str) -> Tensor:
        return cast(Tensor, getattr(self, line))

    def summed(self, route: Route, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows (m,) of this shard that any rank has a gradient for, and its sum over ranks, (m, ...).

        `gradient` (n, ...) is this rank's, for the rows of the route. Collective.
        """
        lines, sums = route.add(gradient)
        return self.places.rows_at(lines), sums

    def adagrad_step(
        self, rows: Tensor, gradient: Tensor, learning_rate: float, memory: float = 1.0, decay: float = 0.0
    ) -> None:
        """Update distinct `rows` (n,) of this shard by their `gradient` (n, d); padding stays zeros.

        `memory` is the share of the sums that is kept; below 1 the update is RMSprop, whose step size does not shrink
        forever (Tieleman and Hinton, "Lecture 6.5: rmsprop", 2012; the sum here is not divided by 1 / (1 - memory)).
        `decay` times the row is added to its gradient: an L2 penalty of decay / 2 times its square.
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
        """Mark this rank's rows among `rows` (n,) as changed, in their embedding or data stored beside it."""
        self.touched.mark(self.places.local(rows[self.places.own(rows)]).numpy(), readers)


def _blocks(rows: int) -> Iterator[int]:
    """Yield the starts of blocks of rows, then the end of the last block, which includes any remainder.

    `torch.randn` draws 16 numbers at a time and a shorter rest differently: with these blocks the numbers equal those
    of one draw.
    """
    yield from range(0, max(rows - _AT_ONCE, 0) + 1, _AT_ONCE)
    yield rows
