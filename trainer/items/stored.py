"""Sharded arrays of the item table, streamed in the layout of a checkpoint.

For a full checkpoint, each rank writes the embeddings of its own shard, in the order of places, so that they can be cut
for any number of ranks. All other arrays are fetched in chunks by the rank that writes them, so that no rank holds the
shards of other ranks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts.base.string_arrays import in_scratch
from weir.trainer.items.embeddings import Embeddings, Line
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.table import ID_BYTES, ID_SIZES, KEYS, SEEN_MS, ItemTable

__all__ = ["PlacedLines", "RowLines", "SharedLines", "Twins", "described", "fetched", "placed", "tabled"]

_AT_ONCE: Final = 1 << 16
"""Rows fetched at a time: 16 MB with 64 dimensions."""


class SharedLines(Protocol):
    """A sharded array, iterated in chunks."""

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the array."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        ...

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the chunks in order."""
        ...


@dataclass(frozen=True)
class PlacedLines:
    """An array of the embeddings, iterated over the rows of this rank's shard in the order of places."""

    embeddings: Embeddings
    line: Line

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the array."""
        return self.embeddings.weight.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape over all ranks, (capacity, ...)."""
        return self.embeddings.capacity, *self.embeddings.state_dict()[self.line].shape[1:]

    def __iter__(self) -> Iterator[Tensor]:
        places, lines = self.embeddings.places, self.embeddings.state_dict()[self.line]
        if places.ranks > 1:
            yield from torch.split(lines, _AT_ONCE)  # already in this order
            return
        for first in range(0, len(lines), _AT_ONCE):
            some = torch.arange(first, min(first + _AT_ONCE, len(lines)), device=lines.device)
            yield lines.index_select(0, places.rows(some))


@dataclass(frozen=True)
class RowLines:
    """A sharded array at some `rows`, in their order, fetched while it is iterated.

    Parameters
    ----------
    read
        Returns the lines of given rows (n,). Collective, or called by rank 0 in `Workers.first`.
    rows
        All rows of the table, or some distinct ones.
    """

    read: Callable[[TableRows], Tensor]
    rows: range | TableRows

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the array."""
        return self.read(no_rows()).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return len(self.rows), *self.read(no_rows()).shape[1:]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.read, _pieces(self.rows))


class Twins:
    """Two arrays fetched by one query: while the first is iterated, the second is spooled to disk for later.

    Parameters
    ----------
    read
        Returns the lines of both arrays for given rows (n,). Collective, or called by rank 0 in `Workers.first`.
    rows
        All rows of the table, or some distinct ones.
    """

    def __init__(self, read: Callable[[TableRows], tuple[Tensor, Tensor]], rows: range | TableRows) -> None:
        self._read, self._rows = read, rows
        self._kept, self._length = deque[npt.NDArray[Any]](), -1

    def first(self) -> Iterator[Tensor]:
        """Yield the chunks of the first array."""
        self._kept.clear()
        length = 0
        for some in _pieces(self._rows):
            first, second = self._read(some)
            self._kept.append(in_scratch(second.numpy()))
            length += len(second)
            yield first
        self._length = length

    def second(self) -> Iterator[Tensor]:
        """Yield the chunks of the second array; chunks that are not spooled, or already consumed, are fetched."""
        kept, self._kept = self._kept, deque()
        for some in _pieces(self._rows):
            yield torch.from_numpy(kept.popleft()) if kept else self._read(some)[1]

    @property
    def length(self) -> int:
        """Length of the second array, which is fetched if the first has not been iterated."""
        if self._length < 0:
            self._length = sum(len(self._read(some)[1]) for some in _pieces(self._rows))
        return self._length


@dataclass(frozen=True)
class TwinLines(RowLines):
    """The first or the second array of `twins` (`Twins`); the second may differ in length from `rows`."""

    twins: Twins
    is_first: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        _, *others = super().shape
        return len(self.rows) if self.is_first else self.twins.length, *others

    def __iter__(self) -> Iterator[Tensor]:
        return self.twins.first() if self.is_first else self.twins.second()


def _pieces(rows: range | TableRows) -> Iterator[TableRows]:
    """Split rows into pieces of `_AT_ONCE`."""
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        yield TableRows(np.arange(some.start, some.stop) if isinstance(some, range) else some)


def tabled(table: ItemTable, some: TableRows | None = None) -> dict[str, RowLines]:
    """Return the arrays of `ItemTable.state_dict` over all ranks, or at some rows, fetched while iterated."""
    rows = range(table.capacity) if some is None else some
    arrays = dict[str, RowLines]()
    for pair in ((KEYS, SEEN_MS), (ID_SIZES, ID_BYTES)):
        twins = Twins(partial(_arrays, table, pair), rows)
        arrays |= {name: TwinLines(partial(_array, table, name), rows, twins, name == pair[0]) for name in pair}
    return arrays


def _array(table: ItemTable, name: str, rows: TableRows) -> Tensor:
    """Return the array `name` of the table at rows (n,)."""
    return torch.from_numpy(table.state_of(rows, [name])[name])


def _arrays(table: ItemTable, names: tuple[str, str], rows: TableRows) -> tuple[Tensor, Tensor]:
    """Return the two arrays `names` of the table at rows (n,), by one query."""
    arrays = table.state_of(rows, names)
    return torch.from_numpy(arrays[names[0]]), torch.from_numpy(arrays[names[1]])


def fetched(embeddings: Embeddings, rows: TableRows) -> dict[str, RowLines]:
    """Return the arrays of `Embeddings.state_of`, fetched while they are iterated."""
    return {line: RowLines(partial(_line, embeddings, line), rows) for line in get_args(Line)}


def _line(embeddings: Embeddings, line: Line, rows: TableRows) -> Tensor:
    """Return the array `line` (a name) of the embeddings at rows (n,)."""
    return embeddings.state_of(rows, [line])[line]


def described(features: FeatureTable, some: TableRows | None = None) -> dict[str, RowLines]:
    """Return the arrays of `FeatureTable.state_dict` over all ranks, or at some rows, fetched while iterated."""
    rows = range(features.places.capacity) if some is None else some
    return {name: RowLines(partial(features.fetch, key=key), rows) for name, key in features.lines.items()}


def placed(embeddings: Embeddings) -> dict[Line, PlacedLines]:
    """Return the arrays of `Embeddings.state_dict`, sorted by name, with lines in the order of places."""
    return {line: PlacedLines(embeddings, line) for line in sorted(get_args(Line))}
