"""Which lines of a stored tensor a rank takes, whatever ranks divide it by: places, stripes, or the sizes of ids.

Lines come piece by piece, so a rank never holds what others keep. A whole checkpoint has lines for all rows, a delta
for those that it lists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.places import Places
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.stripes import Stripes
from weir.trainer.items.table import ID_BYTES, ID_SIZES, KEYS, SEEN_MS

__all__ = ["OwnBytes", "OwnLines", "OwnListed", "OwnPlaces", "OwnSizes", "OwnStripes", "own_table"]

_AT_ONCE: Final = 1 << 16
"""Listed rows looked at a time: a look takes several numbers for each."""


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
        if self.by_place == (self.places.ranks > 1):
            # Stored in the order in which the rank keeps them.
            at = first - self.wanted.start
            into[at : at + len(lines)] = lines
            return
        stored = torch.arange(first, first + len(lines))
        if self.by_place:
            _put(lines, into, self.places.rows(stored))
        else:
            own = self.places.own(stored)
            _put(lines[own], into, self.places.local(stored[own]))


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
        skipped = (self._stripes.rank - first) % self._stripes.ranks
        own, at = lines[skipped :: self._stripes.ranks], (first + skipped) // self._stripes.ranks
        into[at : at + len(own)] = own


class OwnListed:
    """The lines of those of a delta's rows that a rank keeps, in the delta's order; `rows` (count,) are these.

    Parameters
    ----------
    listed
        The rows that the delta has lines for, (n,).
    own
        Returns where the rank's rows are among any rows (m,).
    """

    def __init__(self, listed: TableRows, own: Callable[[TableRows], npt.NDArray[np.int64]]) -> None:
        firsts = range(0, len(listed), _AT_ONCE)
        numbers = [first + own(TableRows(listed[first : first + _AT_ONCE])) for first in firsts]
        self._numbers = np.concatenate([no_rows(), *numbers])
        self._listed, self.rows = len(listed), TableRows(listed[self._numbers])

    @property
    def wanted(self) -> range:
        """The stored lines to look at."""
        return range(self._listed)

    @property
    def count(self) -> int:
        """Listed rows of the rank."""
        return len(self._numbers)

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored lines (n, ...), from number `first` on."""
        low, high = np.searchsorted(self._numbers, [first, first + len(lines)])
        into[low:high] = lines[torch.from_numpy(self._numbers[low:high] - first)]


class OwnSizes:
    """The sizes of ids, -1 where there is none; they say where the bytes are, for `OwnBytes`.

    `edges` (count, 2) are where the bytes of each own row start and end among those of all rows, `total` bytes.

    Parameters
    ----------
    lines
        Those of the rank, in the order in which they are stored.
    """

    def __init__(self, lines: OwnStripes | OwnListed) -> None:
        self._lines = lines
        self.edges, self.total = torch.empty((self.count, 2), dtype=torch.int64), 0

    @property
    def wanted(self) -> range:
        """The stored sizes to look at."""
        return self._lines.wanted

    @property
    def count(self) -> int:
        """Rows of the rank."""
        return self._lines.count

    def take(self, first: int, lines: Tensor, into: Tensor) -> None:
        """Copy the own ones among stored sizes (n,), from number `first` on."""
        self._lines.take(first, lines, into)
        sizes = lines.clamp(min=0)
        ends = self.total + sizes.cumsum(0)
        self._lines.take(first, torch.stack([ends - sizes, ends], 1), self.edges)
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


def _put(lines: Tensor, into: Tensor, at: Tensor) -> None:
    """Copy lines (n, ...) to some of a tensor's; NumPy copies whole ones, PyTorch one number after another."""
    into.numpy()[at.numpy()] = lines.numpy()


def own_table(rows: OwnStripes | OwnListed) -> dict[str, OwnLines]:
    """Return which lines of each array of the item table a rank takes, by name, given those of a plain one."""
    sizes = OwnSizes(rows)
    return {KEYS: rows, SEEN_MS: rows, ID_SIZES: sizes, ID_BYTES: OwnBytes(sizes)}
