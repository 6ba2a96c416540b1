"""Exact counts in an open-addressing hash table of numpy arrays.

Linear probing over whole batches: each round probes one slot per key that is not placed yet, so the number of
Python steps is the longest probe sequence, not the number of keys. At most half of the slots are used, which keeps
the sequences short.
"""

import struct
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.sketches.codec import Frame, Kind, decode, encode
from weir.sketches.hashing import Slots, fmix64, sum_by_key
from weir.sketches.protocol import Floats, FrequencyEstimator, Keys, as_batch, as_factor, as_keys, combinable
from weir.sketches.total import Total

_HASH_NAME: Final = "none"
_PARAMS: Final = struct.Struct("<Q16s")
_SMALLEST_TABLE: Final = 64


class ExactCounter(FrequencyEstimator):
    """The true count of every key, for bounded catalogues and as a test oracle.

    Memory grows with the number of distinct keys: 34 to 68 bytes each. `decay` never removes a key.
    """

    def __init__(self) -> None:
        self._total = Total()
        self._used = 0
        self._allocate(_SMALLEST_TABLE)

    def __len__(self) -> int:
        """Return the number of distinct keys."""
        return self._used

    @property
    def total(self) -> float:
        """Number of events, weighted and decayed."""
        return self._total.value

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._keys.nbytes + self._counts.nbytes + self._taken.nbytes

    @property
    def fill(self) -> float:
        """Share of the table's slots in use; the table grows at one half."""
        return self._used / self._keys.size

    def items(self) -> tuple[Keys, Floats]:
        """Return all keys, ascending, and their counts; both shape (len(self),)."""
        slots = np.flatnonzero(self._taken)
        order = slots[np.argsort(self._keys[slots])]
        return self._keys[order], self._counts[order]

    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch; see `FrequencyEstimator.update`."""
        batch, checked = as_batch(keys, weights)
        self._add(*sum_by_key(batch, checked))
        self._total.add(batch.size, checked)

    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Return the true count of each key, in events, shape (n,)."""
        slots, found = self._find(as_keys(keys))
        return np.where(found, self._counts[slots], 0.0)

    def merge(self, other: FrequencyEstimator) -> None:
        """Add another exact counter."""
        theirs = combinable(self, other)
        self._add(*theirs.items())
        self._total.merge(theirs._total)

    def decay(self, factor: float) -> None:
        """Multiply every count and the total by a factor in (0, 1]."""
        self._total.decay(as_factor(factor))
        self._counts *= factor

    def to_bytes(self) -> bytes:
        """See `FrequencyEstimator.to_bytes`; keys ascending, so that equal counts give equal bytes."""
        keys, counts = self.items()
        payload = keys.astype("<i8").tobytes() + counts.astype("<f8").tobytes()
        return encode(Frame(Kind.EXACT, _HASH_NAME, _PARAMS.pack(keys.size, self._total.to_bytes()), payload))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """See `FrequencyEstimator.from_bytes`."""
        frame = decode(data, kind=Kind.EXACT, hash_name=_HASH_NAME)
        size, total = frame.unpack(_PARAMS)
        payload = frame.require_payload(16 * size)
        keys = np.frombuffer(payload, dtype="<i8", count=size).astype(np.int64)
        counter = cls()
        counter._add(keys, np.frombuffer(payload, dtype="<f8", offset=8 * size).astype(np.float64))
        counter._total = Total.from_bytes(total)
        return counter

    def _allocate(self, size: int) -> None:
        """Replace the table by an empty one with `size` slots."""
        self._keys = np.zeros(size, dtype=np.int64)
        self._counts = np.zeros(size, dtype=np.float64)
        self._taken = np.zeros(size, dtype=np.bool_)

    def _add(self, distinct: Keys, sums: Floats) -> None:
        """Add `sums` (n,) to the counts of `distinct` keys (n,), new ones included."""
        slots, found = self._find(distinct)
        self._counts[slots[found]] += sums[found]
        self._insert(distinct[~found], sums[~found])

    def _home(self, keys: Keys) -> Slots:
        """Return the first probe slot of each key."""
        mask = np.uint64(self._keys.size - 1)
        return (fmix64(keys.view(np.uint64)) & mask).astype(np.intp)

    def _find(self, keys: Keys) -> tuple[Slots, npt.NDArray[np.bool_]]:
        """Return for each key its slot, and whether the key is there; if not, the slot is the empty one to use."""
        slots = self._home(keys)
        searching = np.arange(keys.size)
        while searching.size:
            at = slots[searching]
            searching = searching[self._taken[at] & (self._keys[at] != keys[searching])]
            slots[searching] = (slots[searching] + 1) % self._keys.size
        return slots, self._taken[slots]

    def _insert(self, keys: Keys, counts: Floats) -> None:
        """Insert distinct keys (n,) that are not in the table, with their counts (n,)."""
        self._reserve(self._used + keys.size)
        slots = self._home(keys)
        unplaced = np.arange(keys.size)
        while unplaced.size:
            at = slots[unplaced]
            free = unplaced[~self._taken[at]]
            self._keys[slots[free]] = keys[free]  # of several keys on one free slot, the last one written stays
            self._taken[slots[free]] = True
            unplaced = unplaced[self._keys[slots[unplaced]] != keys[unplaced]]
            slots[unplaced] = (slots[unplaced] + 1) % self._keys.size
        self._counts[slots] = counts
        self._used += keys.size

    def _reserve(self, used: int) -> None:
        """Grow the table until ``used`` keys fill at most half of it."""
        if 2 * used <= self._keys.size:
            return
        keys, counts = self.items()
        self._allocate(1 << (2 * used - 1).bit_length())
        self._used = 0
        self._insert(keys, counts)
