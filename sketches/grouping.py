"""Weights summed per distinct key of a batch, by hashing instead of sorting."""

from typing import Final

import numpy as np

from sketches.arrays import Floats, Keys

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


def sum_by_key(keys: Keys, weights: Floats | None) -> tuple[Keys, Floats]:
    """Distinct keys of a batch, in no particular order, and the sum of the weights of each (its count without).

    Sorting would take most of the time of an update. Here every key writes its position into a small table; the last
    one to write a slot represents all equal keys. The few keys that share a slot with another key are sorted; a poor
    hash only makes them more, so that one multiplication will do.
    """
    bits = max(1, keys.size.bit_length())
    slots = ((keys.view(np.uint64) * _MULTIPLIER) >> np.uint64(64 - bits)).view(np.int64)
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
