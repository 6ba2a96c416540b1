"""Frequencies under drift, with events as the clock: one conservative count-min sketch per half-life.

A short half-life follows a change quickly but is noisy, a long one is precise but late. So each key uses the longest
half-life whose rate agrees with the rates of all shorter half-lives within the counting noise. Choosing a bandwidth in
this way is Lepski's method.

Source: Lepski, "On a problem of adaptive estimation in Gaussian white noise", 1990.
"""

import struct
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from weir.sketches.codec import Frame, Kind, decode, encode
from weir.sketches.count_min import CountMinSketch
from weir.sketches.hashing import HASH_NAME
from weir.sketches.protocol import (
    Floats,
    FrequencyEstimator,
    Keys,
    as_batch,
    as_factor,
    as_keys,
    combinable,
    log_probability,
)

__all__ = ["Choice", "agreed", "choose", "longest_agreeing", "to_longest"]


Choice = npt.NDArray[np.int8]

_TOLERANCE: Final = 1.5
"""Standard deviations within which two rates agree; measured: the result is flat between 1 and 2."""
_NO_EVENTS: Final = 1e-100
"""Replaces a total of 0, to avoid a division by 0. All counts are 0 then, and so are the rates."""


_PARAMS: Final = struct.Struct("<QIIQ")
_SPREAD: Final = 0.5
"""Variance of a count with decay per event, divided by the count: squared weights decay twice as fast."""

_OWN_OCCURRENCE: Final = 0.5
"""Events subtracted for a key's own occurrence; fewer than 1, as an item that occurs now is likelier than others."""


def agreed(counts: Sequence[Floats], totals: Sequence[float], squares: Sequence[float]) -> Floats:
    """Return the count of each key (n,) under the half-life that `choose` selects, in events of the longest half-life.

    Parameters as for `choose`.
    """
    scaled = [count * scale for count, scale in zip(counts, to_longest(totals), strict=True)]
    selected: Floats = np.choose(choose(counts, totals, squares), scaled)
    return selected


def to_longest(totals: Sequence[float]) -> list[float]:
    """Return for each half-life the factor that converts its counts to events of the longest half-life."""
    return [1.0 if total == totals[-1] else totals[-1] / max(total, _NO_EVENTS) for total in totals]


def choose(counts: Sequence[Floats], totals: Sequence[float], squares: Sequence[float]) -> Choice:
    """Return for each key (n,) the index of the half-life to use; see `longest_agreeing`.

    Parameters
    ----------
    counts
        The keys' counts under each half-life, (n,) each, from the shortest to the longest.
    totals
        For each half-life, the sum of the weights of all events.
    squares
        For each half-life, the sum of the squared weights of all events.
    """
    held = [max(total, _NO_EVENTS) for total in totals]
    rates = [count / total for count, total in zip(counts, held, strict=True)]
    return longest_agreeing(rates, [square / total**2 for square, total in zip(squares, held, strict=True)])


def longest_agreeing(rates: Sequence[Floats], noises: Sequence[float]) -> Choice:
    """Return for each key (n,) the index of the longest half-life whose rate agrees with the rates of all shorter ones.

    Parameters
    ----------
    rates
        The keys' rates under each half-life, (n,) each, from the shortest to the longest.
    noises
        For each half-life, the variance of a rate divided by the rate: for counts of Poisson events of weight w each,
        ``sum(w**2) / sum(w)**2``. Rates agree within 1.5 standard deviations of their difference.
    """
    chosen = np.zeros(rates[0].size, dtype=np.int8)
    for longer in range(1, len(rates)):
        agrees = np.ones(chosen.size, dtype=np.bool_)
        for shorter in range(longer):
            variance = np.maximum(rates[longer], rates[shorter]) * (noises[longer] + noises[shorter])
            agrees &= (rates[longer] - rates[shorter]) ** 2 <= _TOLERANCE**2 * variance
        chosen[agrees] = longer
    return chosen


class FrequencyBank(FrequencyEstimator):
    """Decayed counts of keys under several half-lives, to follow drifting popularity.

    Decay is automatic, per event: an event of weight 1 ages all earlier events by one step. The order of the keys
    inside a batch is therefore their order in time.

    All parameters are also attributes, and immutable.

    Parameters
    ----------
    half_lives
        Numbers of events after which a count has halved, ascending; .05, .2 and .8 of the number of events between
        two changes did best where 30 % of the items change their popularity at once.
    width
        Cells per row of the sketch with the longest half-life; all others, with fewer effective keys, have half as
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
        """Return the natural logarithm of each key's probability, (n,); see `FrequencyEstimator.log_q`.

        Parameters
        ----------
        keys
            int64, shape (n,).
        unseen
            Least count of a key, in events of `total`: lower estimates are raised to it, so that keys that were never
            counted have a finite log Q.
        leave_one_out
            True if the current occurrence of each key has just been counted: half an event is then subtracted from each
            count. Otherwise rare items would look several times more frequent than they are.
        """
        own = _OWN_OCCURRENCE if leave_one_out else 0.0
        return log_probability(self._counts(as_keys(keys), own=own), self.total, unseen)

    def merge(self, other: FrequencyEstimator) -> None:
        """Add the counts of another bank with the same parameters, half-life by half-life.

        The banks count parts of one stream, so a half-life then is a number of events of one part, not of the stream.
        """
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
        """Return the counts of keys (n,) under their chosen half-lives, in events of the longest half-life.

        `own` events are subtracted from each count first.
        """
        counts = [np.maximum(sketch.estimate(keys) - own, 0.0) for sketch in self._sketches]
        totals = [sketch.total for sketch in self._sketches]
        return agreed(counts, totals, [_SPREAD * total for total in totals])
