"""Shard readers: select one rank's part of a stored array, whatever the number of ranks that wrote the array.

Stored arrays are read in chunks, so a rank holds no more than a chunk of other ranks' rows. A full checkpoint stores
all rows, a delta only the rows that it lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.placement import Places
from weir.trainer.items.rows import RowSharding, TableRows, no_rows
from weir.trainer.items.table import ID_BYTES, ID_SIZES, KEYS, SEEN_MS

__all__ = ["OwnBytes", "OwnListed", "OwnPlaces", "OwnRowSharding", "OwnSizes", "ShardSelection", "own_table"]

_AT_ONCE: Final = 1 << 16
"""Listed rows examined at a time: each takes several numbers of temporary memory."""


class ShardSelection(Protocol):
    """Selects one rank's rows of a stored array."""

    @property
    def wanted(self) -> range:
        """Range of positions in the stored array to read."""
        ...

    @property
    def count(self) -> int:
        """Number of rows that the rank keeps."""
        ...

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the rank's own rows from a chunk (n, ...), stored from position `first` on, to `into` (count, ...).

        Called for all chunks of `wanted`, in order.
        """
        ...


@dataclass(frozen=True)
class OwnPlaces:
    """Shard reader of an array sharded by `Places` and stored by place or by row."""

    places: Places
    by_place: bool

    @property
    def wanted(self) -> range:
        """Range of positions in the stored array to read."""
        return self.places.here if self.by_place else range(self.places.capacity)

    @property
    def count(self) -> int:
        """Number of places of the rank."""
        return len(self.places.here)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the rank's own rows from a chunk (n, ...), stored from position `first` on."""
        if self.by_place == (self.places.ranks > 1):
            # Stored order equals the rank's local order.
            at = first - self.wanted.start
            into[at : at + len(lines)] = lines
            return
        stored = torch.arange(first, first + len(lines))
        if self.by_place:
            _put(lines, into, self.places.rows(stored))
        else:
            own = self.places.own(stored)
            _put(lines[own], into, self.places.local(stored[own]))


class OwnRowSharding:
    """Shard reader of an array sharded by `RowSharding` and stored by row.

    Parameters
    ----------
    stripes
        The rank's share of the rows.
    capacity
        Rows of the table.
    """

    def __init__(self, stripes: RowSharding, capacity: int) -> None:
        self._stripes, self._capacity = stripes, capacity

    @property
    def wanted(self) -> range:
        """Range of positions in the stored array to read."""
        return range(self._capacity)

    @property
    def count(self) -> int:
        """Number of rows of the rank."""
        return self._stripes.count(self._capacity)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the rank's own rows from a chunk (n, ...), stored from position `first` on."""
        skipped = (self._stripes.rank - first) % self._stripes.ranks
        own, at = lines[skipped :: self._stripes.ranks], (first + skipped) // self._stripes.ranks
        into[at : at + len(own)] = own


class OwnListed:
    """Shard reader of an array in a delta; `rows` (count,) are the rank's rows, in the order of the delta.

    Parameters
    ----------
    listed
        Rows that the delta stores, (n,).
    own
        Returns the positions of the rank's rows in an array of rows (m,).
    """

    def __init__(self, listed: TableRows, own: Callable[[TableRows], npt.NDArray[np.int64]]) -> None:
        firsts = range(0, len(listed), _AT_ONCE)
        numbers = [first + own(TableRows(listed[first : first + _AT_ONCE])) for first in firsts]
        self._numbers = np.concatenate([no_rows(), *numbers])
        self._listed, self.rows = len(listed), TableRows(listed[self._numbers])

    @property
    def wanted(self) -> range:
        """Range of positions in the stored array to read."""
        return range(self._listed)

    @property
    def count(self) -> int:
        """Number of listed rows of the rank."""
        return len(self._numbers)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the rank's own rows from a chunk (n, ...), stored from position `first` on."""
        low, high = np.searchsorted(self._numbers, [first, first + len(lines)])
        into[low:high] = lines[torch.from_numpy(self._numbers[low:high] - first)]


class OwnSizes:
    """Shard reader of the sizes of ids, -1 for no id, which locate the bytes for `OwnBytes`.

    `edges` (count, 2) are the start and end of each own id in the stored bytes of all ids; `total` is their number.

    Parameters
    ----------
    lines
        Reader of the rank's rows.
    """

    def __init__(self, lines: OwnRowSharding | OwnListed) -> None:
        self._lines = lines
        self.edges, self.total = torch.empty((self.count, 2), dtype=torch.int64), 0

    @property
    def wanted(self) -> range:
        """Range of stored sizes to read."""
        return self._lines.wanted

    @property
    def count(self) -> int:
        """Number of rows of the rank."""
        return self._lines.count

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the sizes of the rank's own ids from a chunk (n,), stored from position `first` on."""
        self._lines.take(first, lines, into)
        sizes = lines.clamp(min=0)
        ends = self.total + sizes.cumsum(0)
        self._lines.take(first, torch.stack([ends - sizes, ends], 1), self.edges)
        self.total += int(sizes.sum())


class OwnBytes:
    """Shard reader of the concatenated bytes of ids.

    Parameters
    ----------
    sizes
        Reader of the sizes, which have been read before.
    """

    def __init__(self, sizes: OwnSizes) -> None:
        self._sizes, self._taken = sizes, 0

    @property
    def wanted(self) -> range:
        """Range of stored bytes to read."""
        return range(self._sizes.total)

    @property
    def count(self) -> int:
        """Number of bytes of the rank's ids."""
        return int(self._sizes.edges.diff(dim=1).sum())

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the rank's own bytes from a chunk (n,) that starts at stored byte `first`."""
        own = lines[self._own(first, first + len(lines))]
        into[self._taken : self._taken + len(own)] = own
        self._taken += len(own)

    def _own(self, first: int, last: int) -> Tensor:
        """Return a mask of the rank's bytes in [first, last)."""
        edges = self._sizes.edges.view(-1).numpy()
        passed, within = np.searchsorted(edges, first, "right"), np.searchsorted(edges, last, "left")
        cuts = np.concatenate([[first], edges[passed:within], [last]])
        inside = (passed + np.arange(len(cuts) - 1)) % 2 == 1
        return torch.from_numpy(np.repeat(inside, np.diff(cuts)))


def _put(lines: Tensor, into: Tensor, at: Tensor) -> None:
    """Copy lines (n, ...) to positions `at` (n,) of a tensor, by NumPy, which copies whole lines at a time."""
    into.numpy()[at.numpy()] = lines.numpy()


def own_table(rows: OwnRowSharding | OwnListed) -> dict[str, ShardSelection]:
    """Return the shard reader of each array of the item table by name, given the reader for its rows."""
    sizes = OwnSizes(rows)
    return {KEYS: rows, SEEN_MS: rows, ID_SIZES: sizes, ID_BYTES: OwnBytes(sizes)}
