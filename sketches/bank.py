"""Frequencies under drift, with events as the clock: one conservative count-min sketch per half-life.

For each key the bank uses the longest half-life that can be trusted (`weir.sketches.half_lives`).
"""

import struct
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.sketches.arrays import Floats, Keys, as_batch, as_factor, as_keys
from weir.sketches.codec import Frame, Kind, decode, encode
from weir.sketches.count_min import CountMinSketch
from weir.sketches.half_lives import agreed
from weir.sketches.hashing import HASH_NAME
from weir.sketches.protocol import FrequencyEstimator, combinable, log_probability

_PARAMS: Final = struct.Struct("<QIIQ")
_SPREAD: Final = 0.5
"""Variance of a count with decay per event, divided by the count: squared weights decay twice as fast."""
_OWN_OCCURRENCE: Final = 0.5
"""Events subtracted for a key's own occurrence; fewer than 1, as an item that occurs now is likelier than others."""


class FrequencyBank(FrequencyEstimator):
    """Decayed counts that follow drifting popularity.

    Decay is automatic, per event: an event of weight 1 ages all earlier ones by one step. The order of the
    keys inside a batch is therefore their order in time.

    All parameters are also attributes, and immutable.

    Parameters
    ----------
    half_lives
        Numbers of events after which a count has halved, ascending; .05, .2 and .8 of the number of events between
        two changes did best where 30 % of the items change their popularity at once.
    width
        Cells per row of the sketch with the longest half-life; the others, with fewer effective keys, have half as
        many.
    depth
        Rows of each sketch.
    seed
        Chooses the row hashes.
    """

    PARAMETERS = ("half_lives", "width", "depth", "seed")

    def __init__(self, half_lives: Sequence[float], width: int, depth: int = 4, *, seed: int = 0) -> None:
        lives = tuple(float(life) for life in half_lives)
        if not lives or not all(b > a for a, b in pairwise((0.0, *lives))):
            raise ValueError(f"half_lives must be positive and ascending, at least one, got {lives}")
        self.half_lives, self.width, self.depth, self.seed = lives, width, depth, seed
        widths = [width // 2] * (len(lives) - 1) + [width]
        self._sketches = [CountMinSketch(cells, depth, seed=seed) for cells in widths]

    @property
    def longest(self) -> CountMinSketch:
        """The sketch with the longest half-life; read-only: updating it would unbalance the bank."""
        return self._sketches[-1]

    @property
    def total(self) -> float:
        """Number of events, decayed with the longest half-life."""
        return self._sketches[-1].total

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return sum(sketch.nbytes for sketch in self._sketches)

    def update(self, keys: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count a batch in order of time; see `FrequencyEstimator.update`."""
        batch, checked = as_batch(keys, weights)
        if batch.size == 0:
            return
        each = np.ones(batch.size) if checked is None else checked
        steps = np.cumsum(each)
        age = steps[-1] - steps
        for half_life, sketch in zip(self.half_lives, self._sketches, strict=True):
            sketch.decay(max(2.0 ** (-steps[-1] / half_life), sys.float_info.min))
            sketch.update(batch, each * np.exp2(-age / half_life))

    def estimate(self, keys: npt.ArrayLike) -> Floats:
        """Return the rate of each key under its chosen half-life, times `total`; shape (n,)."""
        return self._counts(as_keys(keys), own=0.0)

    def log_q(self, keys: npt.ArrayLike, *, unseen: float = 0.5, leave_one_out: bool = False) -> Floats:
        """Logarithm of the probability of each key; see `FrequencyEstimator.log_q`.

        Parameters
        ----------
        keys
            int64, shape (n,).
        unseen
            Count, in events of `total`, given to keys whose estimate is lower.
        leave_one_out
            Set it if the current occurrence of each key was just counted: it is no evidence of how often the key occurs
            otherwise, and makes rare items look several times more frequent than they are.
        """
        own = _OWN_OCCURRENCE if leave_one_out else 0.0
        return log_probability(self._counts(as_keys(keys), own=own), self.total, unseen)

    def merge(self, other: FrequencyEstimator) -> None:
        """Add another bank, half-life by half-life; half-lives then count the events of one part, not of all."""
        for mine, theirs in zip(self._sketches, combinable(self, other)._sketches, strict=True):
            mine.merge(theirs)

    def decay(self, factor: float) -> None:
        """Multiply all counts and totals by a factor in (0, 1], in addition to the decay per event."""
        checked = as_factor(factor)
        for sketch in self._sketches:
            sketch.decay(checked)

    def to_bytes(self) -> bytes:
        """See `FrequencyEstimator.to_bytes`."""
        params = _PARAMS.pack(self.width, self.depth, len(self.half_lives), self.seed)
        parts = [sketch.to_bytes() for sketch in self._sketches]
        half_lives = np.array(self.half_lives, dtype="<f8").tobytes()
        sizes = np.array([len(part) for part in parts], dtype="<u8").tobytes()
        return encode(Frame(Kind.BANK, HASH_NAME, params, b"".join([half_lives, sizes, *parts])))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """See `FrequencyEstimator.from_bytes`."""
        frame = decode(data, kind=Kind.BANK, hash_name=HASH_NAME)
        width, depth, count, seed = frame.unpack(_PARAMS)
        bank = cls(np.frombuffer(frame.payload, dtype="<f8", count=count).tolist(), width, depth, seed=seed)
        sizes = np.frombuffer(frame.payload, dtype="<u8", count=count, offset=8 * count).astype(np.int64)
        ends = (16 * count + np.cumsum(sizes)).tolist()
        frame.require_payload(ends[-1])
        starts = [16 * count, *ends[:-1]]
        bank._sketches = [CountMinSketch.from_bytes(frame.payload[a:b]) for a, b in zip(starts, ends, strict=True)]
        return bank

    def _counts(self, keys: Keys, *, own: float) -> Floats:
        """Return the rates under the chosen half-lives as counts of the longest one."""
        counts = [np.maximum(sketch.estimate(keys) - own, 0.0) for sketch in self._sketches]
        totals = [sketch.total for sketch in self._sketches]
        return agreed(counts, totals, [_SPREAD * total for total in totals])
