"""What ranks share, as a checkpoint has it: embeddings in the order of places, so that any number of ranks cuts them.

Each rank writes its own embeddings, all of them. What is known of rows besides, and the embeddings of some rows, come
piece by piece to the one that writes them: no rank holds what others keep.
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

from weir.contracts.scratch import in_scratch
from weir.trainer.items.embeddings import Embeddings, Line
from weir.trainer.items.features import FeatureTable
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.table import ID_BYTES, ID_SIZES, KEYS, SEEN_MS, ItemTable

__all__ = ["PlacedLines", "RowLines", "SharedLines", "Twins", "described", "fetched", "placed", "tabled"]

_AT_ONCE: Final = 1 << 16
"""Rows fetched at a time: with 64 dimensions 16 MB."""


class SharedLines(Protocol):
    """An array that ranks share, in pieces."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole array."""
        ...

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the pieces in order."""
        ...


@dataclass(frozen=True)
class PlacedLines:
    """The lines of this rank in the order of places, in which those of the next rank follow."""

    embeddings: Embeddings
    line: Line

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.embeddings.weight.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the lines of all ranks together, (capacity, ...)."""
        return self.embeddings.capacity, *self.embeddings.state_dict()[self.line].shape[1:]

    def __iter__(self) -> Iterator[Tensor]:
        places, lines = self.embeddings.places, self.embeddings.state_dict()[self.line]
        if places.ranks > 1:
            yield from torch.split(lines, _AT_ONCE)  # a rank keeps them in this order
            return
        for first in range(0, len(lines), _AT_ONCE):
            some = torch.arange(first, min(first + _AT_ONCE, len(lines)), device=lines.device)
            yield lines.index_select(0, places.rows(some))


@dataclass(frozen=True)
class RowLines:
    """One array with lines for `rows`, in their order, fetched as it is read.

    Parameters
    ----------
    read
        Returns those of some of the rows, (n,); called as `ItemIds.of`.
    rows
        All of the table, or some, distinct.
    """

    read: Callable[[TableRows], Tensor]
    rows: range | TableRows

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.read(no_rows()).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole array."""
        return len(self.rows), *self.read(no_rows()).shape[1:]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.read, _pieces(self.rows))


class Twins:
    """Two arrays that come with one answer: while the first is read, the second is kept on disk, to be read after it.

    Parameters
    ----------
    read
        Returns the lines of both, of some of the rows, (n,); called as `ItemIds.of`.
    rows
        All of the table, or some, distinct.
    """

    def __init__(self, read: Callable[[TableRows], tuple[Tensor, Tensor]], rows: range | TableRows) -> None:
        self._read, self._rows = read, rows
        self._kept, self._length = deque[npt.NDArray[Any]](), -1

    def first(self) -> Iterator[Tensor]:
        """Yield the pieces of the first."""
        self._kept.clear()
        length = 0
        for some in _pieces(self._rows):
            one, other = self._read(some)
            self._kept.append(in_scratch(other.numpy()))
            length += len(other)
            yield one
        self._length = length

    def second(self) -> Iterator[Tensor]:
        """Yield the pieces of the second; it asks for those that were not kept, or have been read."""
        kept, self._kept = self._kept, deque()
        for some in _pieces(self._rows):
            yield torch.from_numpy(kept.popleft()) if kept else self._read(some)[1]

    @property
    def length(self) -> int:
        """Lines of the second; it asks for them where the first has not been read."""
        if self._length < 0:
            self._length = sum(len(self._read(some)[1]) for some in _pieces(self._rows))
        return self._length


@dataclass(frozen=True)
class TwinLines(RowLines):
    """The first or the second of `twins`; the second may have another number of lines than there are rows."""

    twins: Twins
    is_first: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole array."""
        _, *others = super().shape
        return len(self.rows) if self.is_first else self.twins.length, *others

    def __iter__(self) -> Iterator[Tensor]:
        return self.twins.first() if self.is_first else self.twins.second()


def _pieces(rows: range | TableRows) -> Iterator[TableRows]:
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        yield TableRows(np.arange(some.start, some.stop) if isinstance(some, range) else some)


def tabled(table: ItemTable, some: TableRows | None = None) -> dict[str, RowLines]:
    """Return what `ItemTable.state_dict` does, of all ranks, or `state_of` some rows; called as `ItemIds.of`."""
    rows = range(table.capacity) if some is None else some
    found = dict[str, RowLines]()
    for pair in ((KEYS, SEEN_MS), (ID_SIZES, ID_BYTES)):
        twins = Twins(partial(_arrays, table, pair), rows)
        found |= {name: TwinLines(partial(_array, table, name), rows, twins, name == pair[0]) for name in pair}
    return found


def _array(table: ItemTable, name: str, rows: TableRows) -> Tensor:
    return torch.from_numpy(table.state_of(rows, [name])[name])


def _arrays(table: ItemTable, names: tuple[str, str], rows: TableRows) -> tuple[Tensor, Tensor]:
    found = table.state_of(rows, names)
    return torch.from_numpy(found[names[0]]), torch.from_numpy(found[names[1]])


def fetched(embeddings: Embeddings, rows: TableRows) -> dict[str, RowLines]:
    """Return what `Embeddings.state_of` does, fetched as it is read."""
    return {line: RowLines(partial(_line, embeddings, line), rows) for line in get_args(Line)}


def _line(embeddings: Embeddings, line: Line, rows: TableRows) -> Tensor:
    return embeddings.state_of(rows, [line])[line]


def described(features: FeatureTable, some: TableRows | None = None) -> dict[str, RowLines]:
    """Return the lines of `FeatureTable.state_dict`, of all ranks, or of some rows, fetched as they are read."""
    rows = range(features.places.capacity) if some is None else some
    return {name: RowLines(partial(features.fetch, key=key), rows) for name, key in features.lines.items()}


def placed(embeddings: Embeddings) -> dict[Line, PlacedLines]:
    """Return what `Embeddings.state_dict` does, in the order of places; by name, as their files are listed."""
    return {line: PlacedLines(embeddings, line) for line in sorted(get_args(Line))}
