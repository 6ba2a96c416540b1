"""Recent frequencies of keys: merged sketches of windows, decayed by event time.

The trainer reads log Q of items and counts of users from a view, the monitor the currently popular items.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.sketches.bank import Choice, agreed, choose, to_longest
from weir.sketches.loading import load
from weir.sketches.protocol import Floats, FrequencyEstimator, Keys

__all__ = ["DecayedSketch", "FrequencyView", "merge_fading"]


@dataclass
class DecayedSketch:
    """Merged sketch of all windows, decayed with one half-life.

    `squares` is the sum of the squared, decayed weights of all events.
    """

    half_life_seconds: float
    sketch: FrequencyEstimator
    squares: float

    def add(self, fresh: FrequencyEstimator, later_seconds: float) -> None:
        """Add a window's sketch, which ends `later_seconds` after the earlier windows (negative: before their end)."""
        squares = fresh.total
        faded = merge_fading(self.sketch, fresh, later_seconds, self.half_life_seconds) ** 2
        self.squares = self.squares * faded + squares if later_seconds > 0 else self.squares + squares * faded


@dataclass
class FrequencyView:
    """Decayed counts of keys: an event at time t weighs ``2 ** (-(time_ms - t) / half-life)``.

    With several half-lives (ascending), each key is counted with the longest half-life whose rate agrees with the rates
    under all shorter ones (`weir.sketches.bank`): steady keys with a long half-life, which is precise, and changing
    keys with a short half-life, which is up to date. `FrequencyBank` does the same with events instead of seconds as
    the clock.
    """

    half_life_seconds: float | tuple[float, ...]
    time_ms: int = 0
    memories: list[DecayedSketch] = field(default_factory=list)

    @property
    def half_lives(self) -> tuple[float, ...]:
        """All half-lives in seconds of event time, ascending."""
        lives = self.half_life_seconds
        return lives if isinstance(lives, tuple) else (lives,)

    @property
    def sketch(self) -> FrequencyEstimator | None:
        """The counts under the longest half-life; None before the first window."""
        return self.memories[-1].sketch if self.memories else None

    @property
    def total(self) -> float:
        """Number of events, decayed with the longest half-life."""
        return self.memories[-1].sketch.total if self.memories else 0.0

    def add(self, window_sketch: bytes, event_ms: int) -> None:
        """Add a window's serialised sketch, with `event_ms` as the time of its newest event.

        A late pane is older than the view: it is decayed before it is added, and `time_ms` does not change.

        Raises
        ------
        ValueError
            If the bytes are not a sketch, or a sketch with other parameters than the earlier windows'.
        """
        fresh = [load(window_sketch) for _ in self.half_lives]
        if not self.memories:
            lives = zip(self.half_lives, fresh, strict=True)
            self.memories = [DecayedSketch(half_life, sketch, sketch.total) for half_life, sketch in lives]
            self.time_ms = event_ms
            return
        for memory, sketch in zip(self.memories, fresh, strict=True):
            memory.add(sketch, (event_ms - self.time_ms) / 1000)
        self.time_ms = max(self.time_ms, event_ms)

    def counts(self, keys: Keys) -> Floats:
        """Return the estimated decayed counts of keys, (n,), in events of the longest half-life."""
        return self.agreed(self.estimates(keys))

    def estimates(self, keys: Keys) -> Floats:
        """Return the estimated decayed counts of keys under each half-life, (n, half-lives)."""
        estimates = np.zeros((len(keys), len(self.half_lives)))
        for number, memory in enumerate(self.memories):
            estimates[:, number] = memory.sketch.estimate(keys)
        return estimates

    def agreed(self, estimates: Floats) -> Floats:
        """Return the counts of keys, (n,), as `counts` does, from the result of `estimates` (n, half-lives)."""
        return agreed(list(estimates.T), self._totals, self._squares)

    def choose(self, estimates: Floats) -> Choice:
        """Return for each key (n,) the index of the half-life to use, from the result of `estimates`."""
        return choose(list(estimates.T), self._totals, self._squares)

    @property
    def to_longest(self) -> list[float]:
        """For each half-life, the factor that converts its counts to events of the longest half-life."""
        return to_longest(self._totals)

    @property
    def _totals(self) -> list[float]:
        return [memory.sketch.total for memory in self.memories] or [0.0] * len(self.half_lives)

    @property
    def _squares(self) -> list[float]:
        return [memory.squares for memory in self.memories] or [0.0] * len(self.half_lives)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sketches as byte arrays by name, without `time_ms`; empty before the first window."""
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(bytearray(memory.sketch.to_bytes()), np.uint8)
            for name, memory in zip(self._names, self.memories, strict=False)
        }
        if len(self.memories) > 1:
            arrays["weighed"] = np.array([memory.squares for memory in self.memories])
        return arrays

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Load the counts from the result of `state_dict`."""
        if not state:
            self.memories = []
            return
        # With a single half-life, the squares are not needed.
        squares = np.asarray(state["weighed"]).tolist() if "weighed" in state else [0.0]
        sketches = [load(np.asarray(state[name]).tobytes()) for name in self._names]
        self.memories = [DecayedSketch(*parts) for parts in zip(self.half_lives, sketches, squares, strict=True)]

    @property
    def _names(self) -> list[str]:
        """Names of the sketches in `state_dict`; the longest half-life always has the name ``sketch``."""
        return [*(f"shorter.{number}" for number in range(len(self.half_lives) - 1)), "sketch"]


def merge_fading(
    counts: FrequencyEstimator, fresh: FrequencyEstimator, later_seconds: float, half_life_seconds: float
) -> float:
    """Merge `fresh` into `counts`, decay the older of the two, and return its decay factor.

    Parameters
    ----------
    counts
        Counts so far; changed in place.
    fresh
        Counts of another period, which may be changed, too.
    later_seconds
        Time from the end of the period of `counts` to the end of the period of `fresh`; negative if `fresh` is older.
    half_life_seconds
        Time in which a count halves.

    Raises
    ------
    ValueError
        If the parameters of the estimators differ.
    """
    # Beyond a thousand half-lives the factor would be 0, which sketches refuse; a tiny factor has the same effect.
    fading: float = max(0.5 ** (abs(later_seconds) / half_life_seconds), float(np.finfo(np.float64).tiny))
    (counts if later_seconds > 0 else fresh).decay(fading)
    counts.merge(fresh)
    return fading
