"""Sets of index rows as roaring bitmaps, and their conversion to arrays and row masks for NumPy and FAISS."""

from array import array
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import IndexRows

__all__ = ["NO_ROWS", "bits_of", "rows_in", "rowset"]

NO_ROWS: Final = BitMap()


def rowset(rows: npt.NDArray[np.int64]) -> BitMap:
    """Return the set of `rows`, which may repeat."""
    # Ten times as fast as from the NumPy array, which is read number by number.
    numbers = array("I")
    numbers.frombytes(rows.astype(np.uint32).tobytes())
    return BitMap(numbers)


def rows_in(rows: BitMap) -> IndexRows:
    """Return the rows of a set, ascending."""
    return IndexRows(np.frombuffer(rows.to_array(), np.uint32).astype(np.int64))


def bits_of(rows: IndexRows, size: int) -> npt.NDArray[np.uint8]:
    """Return the row mask of `rows`: a bit for each of `size` rows, the lowest one first."""
    mask = np.zeros(size, np.bool_)
    mask[rows] = True
    return np.packbits(mask, bitorder="little")
