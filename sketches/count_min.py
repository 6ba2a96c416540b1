"""Count-min sketch, conservative or linear, in 32-bit cells that neither stall nor overflow.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications" (2005);
conservative update after Estan and Varghese, "New directions in traffic measurement and accounting" (2002), applied
to a whole batch: the batch is first reduced to distinct keys, then every cell of a key is raised to
``max(cell, smallest cell of the key + weight)``.

How a cell counts
-----------------
A float32 cell stalls at ``2**24`` events, a uint32 cell wraps at ``2**32``. Here a cell is a uint32 number of quanta,
and the whole table shares one float64 quantum (block fixed point): ``count = cell * quantum``.

- Weights are rounded **up** to quanta, so that an estimate never falls below the truth.
- `decay` multiplies the quantum and touches no cell: nothing rounds, nothing sticks above zero.
- When a cell would exceed ``2**32 - 1``, all cells are halved, rounded up, and the quantum doubles.

Whole-number weights are exact until one cell holds ``2**32`` undecayed events, after any number of halvings,
because halving only drops zero bits before that. The resolution is never coarser than ``2**-31`` of the fullest cell.

For a linear sketch, merging must equal counting the concatenated stream bit for bit, which holds only while halving
drops zero bits. It therefore starts with a coarser quantum, ``2**-12``: fractional weights are rounded to it
once, and stay exact until one cell holds ``2**20`` events. A conservative sketch has no such guarantee and
starts at ``2**-16``.
"""

import math
import struct
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from weir.sketches.codec import Frame, Kind, decode, encode, pack_cells, unpack_cells
from weir.sketches.hashing import HASH_NAME, RowHash, Slots, sum_by_key
from weir.sketches.protocol import Floats, FrequencyEstimator, Keys, as_batch, as_factor, as_keys, combinable
from weir.sketches.sizing import smallest
from weir.sketches.total import Total

_PARAMS: Final = struct.Struct("<QIB3xQd16s")
_CELL_LIMIT: Final = 1 << 32
_FINEST_QUANTUM: Final = {True: 2.0**-16, False: 2.0**-12}
_SMALLEST_QUANTUM: Final = 2.0**-64
_CHUNK: Final = 1 << 15
_Cells = TypeVar("_Cells", np.uint32, np.uint64)


class CountMinSketch(FrequencyEstimator):
    """Counts of any number of keys in ``4 * width * depth`` bytes.

    All parameters are also attributes, and immutable.

    Parameters
    ----------
    width
        Cells per row, a power of two.
    depth
        Rows; the estimate is the minimum of a key's cells.
    conservative
        True: batch conservative update, always an upper bound on the true count and the smallest error; merging
        keeps the bound. False: linear, can be subtracted, and merging is exact.
    seed
        Chooses the row hashes; sketches of different seeds cannot be combined.
    """

    PARAMETERS = ("width", "depth", "conservative", "seed")

    def __init__(self, width: int, depth: int = 4, *, conservative: bool = True, seed: int = 0) -> None:
        self._hash = RowHash(width, depth, seed)
        self.width, self.depth, self.conservative, self.seed = width, depth, conservative, seed
        self._table = np.zeros(width * depth, dtype=np.uint32)
        self._read: tuple[Slots, npt.NDArray[np.uint32]] | None = None
        self._quantum = _FINEST_QUANTUM[conservative]
        self._total = Total()
        self._peak = 0  # upper bound on the cells, so that linear updates can skip the overflow check

    @classmethod
    def sized_for(
        cls,
        distinct: int,
        log_q_error: float,
        *,
        counts: npt.ArrayLike | None = None,
        conservative: bool = True,
        seed: int = 0,
    ) -> Self:
        """Build the smallest sketch that guarantees a bound on the error of log Q.

        The error W is the mean of ``|log_q - log(true share)|`` over occurrences. Its expectation over seeds is at most
        ``log_q_error``, for any order of events and batches, and after merging. The bound holds for every stream of
        up to ``distinct`` keys or, with ``counts``, for streams whose counts are distributed like ``counts``. The error
        of a conservative sketch is 2 to 6 times smaller on real logs, because the bound covers the worst order of
        events. See `weir.sketches.sizing` for the proof.

        Parameters
        ----------
        distinct
            Expected number of distinct keys.
        log_q_error
            Upper bound of W, above 0.
        counts
            Counts of keys in the stream so far, for example of the items in its first windows, (n,) with
            n <= ``distinct``, all above 0. Saves memory if some keys are much more frequent than others.
        conservative, seed
            As in the constructor.

        Raises
        ------
        ValueError
            If a parameter is out of range.
        """
        width, depth = smallest(distinct, log_q_error, counts)
        return cls(width, depth, conservative=conservative, seed=seed)

    @property
    def total(self) -> float:
        """Number of events, weighted and decayed."""
        return self._total.value

    @property
    def nbytes(self) -> int:
        """Bytes of the cells."""
        return self._table.nbytes

    @property
    def fill(self) -> float:
        """Share of non-zero cells."""
        return float(np.count_nonzero(self._cells)) / self._cells.size

    def cell_counts(self) -> Floats:
        """Return the counts of all cells, in events, shape (depth, width)."""
        return self._events(self._cells).reshape(self.depth, self.width)

    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch; see `FrequencyEstimator.update`."""
        batch, checked = as_batch(keys, weights)
        if batch.size == 0:
            return
        if self.conservative:
            self._raise_cells(batch, checked)
        else:
            self._add_to_cells(batch, checked)
        self._total.add(batch.size, checked)

    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Return the minimum cell of each key, in events, shape (n,)."""
        rows = self._hash.rows(as_keys(keys))
        smallest = self._cells.take(next(rows))
        for slots in rows:  # row by row, so that only one row's slots are in memory
            np.minimum(smallest, self._cells.take(slots), out=smallest)
        return self._events(smallest)

    def merge(self, other: FrequencyEstimator) -> None:
        """Add another sketch with the same parameters, cell by cell, in time proportional to its non-zero cells.

        The other sketch's counts are rounded up to quanta of this sketch. If a cell overflows, all cells are halved; in
        a sketch that decays between merges this happens about once per half-life.
        """
        theirs = combinable(self, other)
        used, values = theirs._in_use()
        added = np.ceil(values * (theirs._quantum / self._quantum))
        while (peak := (self._cells[used] + added).max(initial=0.0)) >= _CELL_LIMIT:
            self._coarsen(_excess_bits(peak))
            added = np.ceil(values * (theirs._quantum / self._quantum))
        self._cells[used] += added.astype(np.uint32)
        self._peak = max(self._peak, int(peak))
        self._total.merge(theirs._total)

    def subtract(self, other: FrequencyEstimator) -> None:
        """Subtract a linear sketch that was counted or merged into this one.

        Raises
        ------
        ValueError
            For conservative sketches, whose cells are not sums; for sketches with different parameters; and if a cell
            would become negative, which shows that ``other`` contains events that this sketch does not.
        """
        theirs = combinable(self, other)
        if self.conservative:
            raise ValueError("a conservative sketch cannot be subtracted (its cells are no sums): build it linear")
        quantum = max(self._quantum, theirs._quantum)
        cells = np.ceil(self._cells * (self._quantum / quantum)) - np.floor(theirs._cells * (theirs._quantum / quantum))
        # Cells that were halved at different times may differ by a rounding step.
        allowed = 0 if self._quantum == theirs._quantum else 2
        if (missing := np.count_nonzero(cells < -allowed)) > 0:
            raise ValueError(f"subtracting would leave {missing} cells negative: the other sketch holds other events")
        self._table, self._quantum = np.maximum(cells, 0).astype(np.uint32), quantum
        self._peak = int(self._cells.max())
        self._total.subtract(theirs._total)

    def decay(self, factor: float) -> None:
        """Multiply every count and the total by a factor in (0, 1]; no cell is touched."""
        self._total.decay(as_factor(factor))
        self._quantum *= factor
        while self._quantum < _SMALLEST_QUANTUM:
            self._coarsen(31)

    def to_bytes(self) -> bytes:
        """See `FrequencyEstimator.to_bytes`; at most ``4 * width * depth`` bytes plus about a hundred."""
        params = _PARAMS.pack(
            self.width, self.depth, self.conservative, self.seed, self._quantum, self._total.to_bytes()
        )
        return encode(Frame(Kind.COUNT_MIN, HASH_NAME, params, pack_cells(self._cells)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """See `FrequencyEstimator.from_bytes`."""
        frame = decode(data, kind=Kind.COUNT_MIN, hash_name=HASH_NAME)
        width, depth, conservative, seed, quantum, total = frame.unpack(_PARAMS)
        used, values = unpack_cells(frame, width * depth)
        sketch = cls(width, depth, conservative=bool(conservative), seed=seed)
        sketch._read = used, values
        sketch._quantum, sketch._total = quantum, Total.from_bytes(total)
        sketch._peak = int(values.max(initial=0))
        return sketch

    @property
    def _cells(self) -> npt.NDArray[np.uint32]:
        """All cells; a deserialised sketch allocates its table on first access."""
        if self._read is not None:
            used, values = self._read
            self._table[used], self._read = values, None
        return self._table

    def _in_use(self) -> tuple[Slots, npt.NDArray[np.uint32]]:
        """Return the positions of non-zero cells, ascending, and their values."""
        if self._read is not None:
            return self._read
        used = np.flatnonzero(self._table)
        return used, self._table[used]

    def _events(self, cells: npt.NDArray[np.uint32]) -> Floats:
        """Convert cells from quanta to events."""
        return cells.astype(np.float64) * self._quantum

    def _smallest(self, slots: Slots) -> npt.NDArray[np.uint32]:
        """Return the smallest cell of each key, (n,), for slots (depth, n)."""
        smallest: npt.NDArray[np.uint32] = self._cells.take(slots).min(axis=0)
        return smallest

    def _raise_cells(self, keys: Keys, weights: Floats | None) -> None:
        """Count a batch by conservative update: raise only the cells below a key's new count."""
        distinct, sums = sum_by_key(keys, weights)
        slots = self._hash.slots(distinct)
        while (target := self._smallest(slots) + np.ceil(sums / self._quantum)).max() >= _CELL_LIMIT:
            self._coarsen(_excess_bits(target.max()))
        raised = target.astype(np.uint32)
        for row in slots:
            np.maximum.at(self._cells, row, raised)

    def _add_to_cells(self, keys: Keys, weights: Floats | None) -> None:
        """Count a batch by linear update: add to all cells of a key."""
        distinct, quanta = self._quanta(keys, weights)
        if self._peak + quanta.sum() >= _CELL_LIMIT:
            self._peak = int(self._cells.max())
        if self._peak + quanta.sum() >= _CELL_LIMIT:
            slots = self._hash.slots(distinct)
            while (peak := self._peak_after(slots, quanta)) >= _CELL_LIMIT:
                self._coarsen(_excess_bits(peak))
                distinct, quanta = self._quanta(keys, weights)
            self._peak = _CELL_LIMIT - 1
        else:
            self._peak += int(quanta.sum())
        added = quanta.astype(np.uint32)
        for row in self._hash.rows(distinct):
            np.add.at(self._cells, row, added)

    def _quanta(self, keys: Keys, weights: Floats | None) -> tuple[Keys, Floats]:
        """Return the distinct keys of a batch, and the sum of quanta of each.

        Every event is rounded up on its own, so the result does not depend on the division into batches.
        """
        if weights is None:
            distinct, counts = sum_by_key(keys, None)
            return distinct, counts * math.ceil(1.0 / self._quantum)
        return sum_by_key(keys, np.ceil(weights / self._quantum))

    def _peak_after(self, slots: Slots, quanta: Floats) -> float:
        """Return the largest value that a cell would have after ``quanta`` (n,) are added at ``slots`` (depth, n)."""
        cells, sums = sum_by_key(slots.ravel(), np.tile(quanta, self.depth))
        return float((self._cells[cells] + sums).max())

    def _coarsen(self, bits: int) -> None:
        """Divide every cell by ``2**bits``, rounded up, and multiply the quantum accordingly."""
        _halve(self._cells, min(bits, 31))
        self._quantum *= 2.0 ** min(bits, 31)


def _excess_bits(peak: float) -> int:
    """Return the fewest halvings, at least one, after which a count of ``peak`` quanta fits a 32-bit cell."""
    return max(1, int(peak).bit_length() - 32)


def _halve(cells: npt.NDArray[_Cells], bits: int) -> None:
    """Divide cells by ``2**bits`` in place, rounded up, so that no count falls below the true count."""
    mask, shift = cells.dtype.type((1 << bits) - 1), cells.dtype.type(bits)
    for start in range(0, cells.size, _CHUNK):  # small enough for the processor's cache
        part = cells[start : start + _CHUNK]
        dropped = (part & mask) != 0
        part >>= shift
        part += dropped
