"""Gap estimator: the streaming frequency estimator of the sampling-bias-corrected two-tower model ("G-Tower").

Each cell stores the step of its last hit and a moving average of the gaps (steps between hits). The probability of a
key is one over its average gap; of several rows the longest gap is used, because collisions only shorten gaps. The
estimator is a baseline: a count-min sketch of the same size is several times more precise.

Source: Yi et al., "Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019,
algorithms 2 and 3.
"""

import struct
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.sketches.codec import Frame, Kind, decode, encode
from weir.sketches.hashing import HASH_NAME, RowHash, Slots
from weir.sketches.protocol import Floats, FrequencyEstimator, Ints, Keys, as_batch, as_factor, as_keys, combinable
from weir.sketches.total import Total

_PARAMS: Final = struct.Struct("<QIdQq16s")
_LARGEST_BATCH: Final = 1 << 24


class GapEstimator(FrequencyEstimator):
    """Rates of keys from the average number of events between two occurrences.

    A step is an event, not a batch: inside a batch the order of the keys is their order in time.

    All parameters are also attributes, and immutable.

    Parameters
    ----------
    width
        Cells per row, a power of two; a cell takes 16 bytes.
    depth
        Rows.
    alpha
        Weight of the newest gap in the moving average, in (0, 1].
    seed
        Chooses the row hashes.
    """

    PARAMETERS = ("width", "depth", "alpha", "seed")

    def __init__(self, width: int, depth: int, alpha: float, *, seed: int = 0) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha must lie in (0, 1], got {alpha}")
        self._hash = RowHash(width, depth, seed)
        self.width, self.depth, self.alpha, self.seed = width, depth, float(alpha), seed
        self._last = np.zeros(width * depth, dtype=np.int64)  # step of the last hit, from 1; 0 = never
        self._gap = np.zeros(width * depth, dtype=np.float64)
        self._step = 0
        self._total = Total()

    @property
    def total(self) -> float:
        """Number of events, decayed."""
        return self._total.value

    @property
    def nbytes(self) -> int:
        """Bytes of the cells."""
        return self._last.nbytes + self._gap.nbytes

    def cell_counts(self) -> Floats:
        """Return the rates of the cells times `total`, shape (depth, width)."""
        return self._counts(self._gap).reshape(self.depth, self.width)

    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch in order of time; see `FrequencyEstimator.update`.

        A weight of w stands for w events in a row. Fractional weights are refused, as they have no gap.
        """
        batch, checked = as_batch(keys, weights)
        events = batch if checked is None else _repeated(batch, checked)
        if events.size == 0:
            return
        steps = np.arange(self._step + 1, self._step + events.size + 1)
        for slots in self._hash.slots(events):
            self._hit(slots, steps)
        self._step += events.size
        self._total.add(events.size, None)

    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Return ``total / gap`` for the longest gap of each key, shape (n,); 0 if a cell of the key has no hit."""
        slots = self._hash.slots(as_keys(keys))
        never = (self._last[slots] == 0).any(axis=0)
        return np.where(never, 0.0, self._counts(self._gap[slots].max(axis=0)))

    def merge(self, other: FrequencyEstimator) -> None:
        """Merge another estimator, as if its stream followed this one's: rates are averaged, weighted by events."""
        theirs = combinable(self, other)
        counts = self._counts(self._gap) + theirs._counts(theirs._gap)
        last = np.where(theirs._last > 0, self._step + theirs._last, self._last)
        self._total.merge(theirs._total)
        self._step += theirs._step
        self._last = last
        self._gap = np.divide(self.total, counts, out=np.zeros_like(counts), where=counts > 0)

    def decay(self, factor: float) -> None:
        """Multiply the total, and with it every estimate, by a factor in (0, 1]; gaps stay."""
        self._total.decay(as_factor(factor))

    def to_bytes(self) -> bytes:
        """See `FrequencyEstimator.to_bytes`."""
        params = _PARAMS.pack(self.width, self.depth, self.alpha, self.seed, self._step, self._total.to_bytes())
        payload = self._last.astype("<i8", copy=False).tobytes() + self._gap.astype("<f8", copy=False).tobytes()
        return encode(Frame(Kind.GAP, HASH_NAME, params, payload))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """See `FrequencyEstimator.from_bytes`."""
        frame = decode(data, kind=Kind.GAP, hash_name=HASH_NAME)
        width, depth, alpha, seed, step, total = frame.unpack(_PARAMS)
        cells = width * depth
        payload = frame.require_payload(16 * cells)
        estimator = cls(width, depth, alpha, seed=seed)
        estimator._last = np.frombuffer(payload, dtype="<i8", count=cells).astype(np.int64)
        estimator._gap = np.frombuffer(payload, dtype="<f8", offset=8 * cells).astype(np.float64)
        estimator._step, estimator._total = step, Total.from_bytes(total)
        return estimator

    def _hit(self, slots: Slots, steps: Ints) -> None:
        """Update the average gaps and the last hits of one row's cells with all hits of a batch.

        For m hits with gaps g_1..g_m, applying ``B <- (1 - a) B + a g`` one by one gives
        ``(1 - a)^m B + a * sum_j (1 - a)^(m - j) g_j``, which is summed per cell here.
        """
        order = np.argsort(slots, kind="stable")
        sorted_slots, sorted_steps = slots[order], steps[order]
        first = np.flatnonzero(np.diff(sorted_slots, prepend=-1))
        hits = np.diff(first, append=slots.size)
        cells = sorted_slots[first]
        before = np.concatenate(([0], sorted_steps[:-1]))
        before[first] = self._last[cells]
        gaps = (sorted_steps - before).astype(np.float64)
        later = np.repeat(first + hits, hits) - 1 - np.arange(slots.size)
        keep = 1.0 - self.alpha
        # A first hit has no earlier average: its gap from the start of the stream replaces it.
        start = np.where(self._last[cells] == 0, gaps[first], self._gap[cells])
        self._gap[cells] = keep**hits * start + np.add.reduceat(self.alpha * keep**later * gaps, first)
        self._last[cells] = sorted_steps[first + hits - 1]

    def _counts(self, gaps: Floats) -> Floats:
        """Convert gaps to counts, ``total / gap``; 0 for a gap of 0."""
        return np.divide(self.total, gaps, out=np.zeros_like(gaps), where=gaps > 0)


def _repeated(keys: Keys, weights: Floats) -> Keys:
    """Return each key as many times as its weight; raises `ValueError` for fractional weights or too many events."""
    if (broken := np.flatnonzero(weights != np.floor(weights))).size:
        raise ValueError(f"the gap estimator counts whole events, got weight {weights[broken[0]]} at {broken[0]}")
    if (events := weights.sum()) > _LARGEST_BATCH:
        raise ValueError(f"one batch may stand for at most {_LARGEST_BATCH} events here, got {events:.0f}")
    return np.repeat(keys, weights.astype(np.int64))
