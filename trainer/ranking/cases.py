"""Test cases: users, each with the items that a ranking should find."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Cases", "Ints", "Lists", "slices"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lists:
    """L lists of codes of differing length, concatenated (the layout of a CSR matrix)."""

    offsets: Ints
    """List i is ``values[offsets[i] : offsets[i + 1]]``, (L + 1,)."""
    values: Ints

    @classmethod
    def grouped(cls, keys: Ints, values: Ints, count: int) -> "Lists":
        """Return `count` lists; list i has the values with key i, in the given order."""
        offsets = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))])
        return cls(offsets, values[np.argsort(keys, kind="stable")])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Length of each list, (L,)."""
        return np.diff(self.offsets)

    @property
    def list_numbers(self) -> Ints:
        """List number of each value, in the order of `values`."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the values of lists `numbers`, (m,), and for each value its list's position in `numbers`, (m,)."""
        return slices(self.values, self.offsets[numbers], self.offsets[numbers + 1])


@dataclass(frozen=True, eq=False)
class Cases:
    """C test cases: users, each with the relevant items."""

    users: Ints
    """Users, (C,)."""
    relevant: Lists
    """C lists of distinct item codes, none empty."""

    def __len__(self) -> int:
        return len(self.users)


def slices(values: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return all ``values[starts[i] : ends[i]]``, concatenated (m,), and for each value its i (m,)."""
    lengths = ends - starts
    number = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return values[starts[number] + within], number
