"""Row hashes of sketches, and sums by key.

A row hash mixes the bits of a key by a finaliser, then multiplies by the row's odd number and keeps the highest bits.

``key mod width`` fails badly on ids with a pattern (consecutive, multiples of a power of two). The
finaliser of MurmurHash3 (fmix64, public domain) spreads every input bit over the word; multiply-shift (Dietzfelbinger
et al., 1997) then takes each row's slot from the high bits. All constants are fixed, so equal parameters give equal
slots on every machine and in every process.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.sketches.protocol import Floats, Keys

Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.intp]

HASH_NAME: Final = "fmix64-mulshift"
_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def splitmix64(seed: int, count: int) -> Words:
    """Derive ``count`` well-mixed 64-bit words from a seed (Steele, Lea and Flood, 2014)."""
    state = np.array([(seed + (i + 1) * _GOLDEN) & _WORD for i in range(count)], dtype=np.uint64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def fmix64(words: Words) -> Words:
    """Mix by the 64-bit finaliser of MurmurHash3: a bijection in which each input bit changes about half the output."""
    mixed = words ^ (words >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


class RowHash:
    """Map keys to a slot in each of ``depth`` rows of ``width`` cells; slots are indices into the flattened table.

    Parameters
    ----------
    width
        Cells per row, a power of two of at least 2.
    depth
        Rows, 1 to 16.
    seed
        Chooses the constants, 0 to ``2**64 - 1``.
    """

    def __init__(self, width: int, depth: int, seed: int) -> None:
        if width < 2 or width > 1 << 32 or width & (width - 1):
            raise ValueError(f"width must be a power of two from 2 to 2**32, got {width}")
        if not 1 <= depth <= 16:
            raise ValueError(f"depth must lie in 1..16, got {depth}")
        if not 0 <= seed <= _WORD:
            raise ValueError(f"seed must lie in 0..2**64-1, got {seed}")
        words = splitmix64(seed, depth + 1)
        self._offset = words[0]
        self._multipliers = words[1:] | np.uint64(1)
        self._shift = np.uint64(64 - (width.bit_length() - 1))
        self._width = width

    def rows(self, keys: Keys) -> Iterator[Slots]:
        """Yield the slots of keys (n,) in one row after another, shape (n,) each."""
        mixed = fmix64(keys.view(np.uint64) ^ self._offset)
        for row, multiplier in enumerate(self._multipliers):
            slots = mixed * multiplier
            slots >>= self._shift
            slots += np.uint64(row * self._width)
            yield slots.view(np.int64).astype(np.intp, copy=False)

    def slots(self, keys: Keys) -> Slots:
        """Return the slots of keys (n,) in all rows, shape (depth, n)."""
        return np.stack(list(self.rows(keys)))


def sum_by_key(keys: Keys, weights: Floats | None) -> tuple[Keys, Floats]:
    """Return the distinct keys of a batch, in no particular order, and the sum of weights (or the count) of each.

    Sorting would take most of the time of an update. Here every key writes its position into a small hash table; the
    last writer of a slot represents all equal keys. The few keys that share a slot with another key are sorted; a poor
    hash only increases their number, so one multiplication is enough.
    """
    bits = max(1, keys.size.bit_length())
    slots = ((keys.view(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(64 - bits)).view(np.int64)
    table = np.empty(1 << bits, dtype=np.int32)
    positions = np.arange(keys.size, dtype=np.int32)
    table[slots] = positions
    representative = table.take(slots)
    crowded = np.flatnonzero(keys.take(representative) != keys)
    if crowded.size:
        _, first, group = np.unique(keys[crowded], return_index=True, return_inverse=True)
        representative[crowded] = crowded[first][group]
    chosen = np.flatnonzero(representative == positions)
    sums = np.bincount(representative, weights=weights, minlength=keys.size)
    return keys.take(chosen), sums.take(chosen).astype(np.float64)
