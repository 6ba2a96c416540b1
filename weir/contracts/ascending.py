"""Distinct numbers in ascending order."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["ascending"]

Number = TypeVar("Number", bound=np.generic)


def ascending(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct ones of `values` (n,), ascending.

    For integers `np.unique` fills a hash table first, which takes 15 ms for 40,000 of them, where
    sorting takes less than one.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
