"""Which lines of a stored tensor a rank takes, whatever ranks divide it by: places, stripes, or the sizes of ids.

Lines come piece by piece, so a rank never holds what others keep.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainer.items.places import Places
from trainer.items.rows import TableRows
from trainer.items.stripes import Stripes
from trainer.items.table import ID_BYTES, ID_SIZES, KEYS, SEEN_MS
from trainer.ranks.workers import Workers

__all__ = ["OwnBytes", "OwnLines", "OwnPlaces", "OwnSizes", "OwnStripes", "own_table"]


class OwnLines(Protocol):
    """The lines of one of several ranks."""

    @property
    def wanted(self) -> range:
        """The stored lines to look at."""
        ...

    @property
    def count(self) -> int:
        """Lines that the rank takes."""
        ...

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n, ...), from number `first` on, into those of this rank (count, ...).

        It is called for all that are `wanted`, in their order.
        """
        ...


@dataclass(frozen=True)
class OwnPlaces:
    """The lines of the rows whose places are a rank's; stored in the order of places, or of rows."""

    places: Places
    by_place: bool

    @property
    def wanted(self) -> range:
        """The stored lines to look at."""
        return self.places.here if self.by_place else range(self.places.capacity)

    @property
    def count(self) -> int:
        """Places of the rank."""
        return len(self.places.here)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n, ...), from number `first` on."""
        stored = torch.arange(first, first + len(lines))
        rows = self.places.rows(stored) if self.by_place else stored
        own = self.places.own(rows)
        into[self.places.local(rows[own])] = lines[own]


class OwnStripes:
    """The lines of a rank's stripe of rows, stored in the order of rows.

    Parameters
    ----------
    stripes
        Says which rows the rank keeps.
    capacity
        Rows of the table.
    """

    def __init__(self, stripes: Stripes, capacity: int) -> None:
        self._stripes, self._capacity = stripes, capacity

    @property
    def wanted(self) -> range:
        """The stored lines to look at."""
        return range(self._capacity)

    @property
    def count(self) -> int:
        """Rows of the rank."""
        return self._stripes.count(self._capacity)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n, ...), from number `first` on."""
        rows = TableRows(np.arange(first, first + len(lines)))
        own = self._stripes.own(rows)
        into[self._stripes.lines(TableRows(rows[own]))] = lines[own]


class OwnSizes(OwnStripes):
    """The sizes of ids, -1 where there is none; they say where the bytes are, for `OwnBytes`.

    `edges` (count, 2) are where the bytes of each own row start and end among those of all rows, `total` bytes.
    """

    def __init__(self, stripes: Stripes, capacity: int) -> None:
        super().__init__(stripes, capacity)
        self.edges, self.total = torch.empty((self.count, 2), dtype=torch.int64), 0

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n,), from number `first` on."""
        super().take(first, lines, into)
        sizes = lines.clamp(min=0)
        ends = self.total + sizes.cumsum(0)
        super().take(first, torch.stack([ends - sizes, ends], 1), self.edges)
        self.total += int(sizes.sum())


class OwnBytes:
    """The bytes of the ids of a rank's rows, stored one id after another.

    Parameters
    ----------
    sizes
        Have been taken before.
    """

    def __init__(self, sizes: OwnSizes) -> None:
        self._sizes, self._taken = sizes, 0

    @property
    def wanted(self) -> range:
        """The stored bytes to look at."""
        return range(self._sizes.total)

    @property
    def count(self) -> int:
        """Bytes of the rank's ids."""
        return int(self._sizes.edges.diff(dim=1).sum())

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored bytes (n,), from number `first` on."""
        own = lines[self._own(first, first + len(lines))]
        into[self._taken : self._taken + len(own)] = own
        self._taken += len(own)

    def _own(self, first: int, last: int) -> Tensor:
        """Say of each byte from `first` to before `last` whether it is the rank's: after an odd number of edges."""
        edges = self._sizes.edges.view(-1).numpy()
        passed, within = np.searchsorted(edges, first, "right"), np.searchsorted(edges, last, "left")
        cuts = np.concatenate([[first], edges[passed:within], [last]])
        inside = (passed + np.arange(len(cuts) - 1)) % 2 == 1
        return torch.from_numpy(np.repeat(inside, np.diff(cuts)))


def own_table(capacity: int, workers: Workers) -> dict[str, OwnLines]:
    """Return which lines of `ItemTable.state_dict` a rank takes, by name, of a table with so many rows."""
    stripes = Stripes(workers.rank, workers.world_size)
    rows, sizes = OwnStripes(stripes, capacity), OwnSizes(stripes, capacity)
    return {KEYS: rows, SEEN_MS: rows, ID_SIZES: sizes, ID_BYTES: OwnBytes(sizes)}
