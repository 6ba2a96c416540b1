"""The recent frequency of keys: sketches of windows, merged, with old counts fading by event time.

The trainer draws log Q of items and the counts of users from it, the monitor the items that are popular now.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.sketches.arrays import Floats, Keys
from weir.sketches.half_lives import Choice, agreed, choose, to_longest
from weir.sketches.loading import load
from weir.sketches.protocol import FrequencyEstimator

__all__ = ["DecayedSketch", "FrequencyView", "merge_fading"]


@dataclass
class DecayedSketch:
    """Windows merged and faded with one half-life; `squares` is the sum of the squared weights of all events."""

    half_life_seconds: float
    sketch: FrequencyEstimator
    squares: float

    def add(self, fresh: FrequencyEstimator, later_seconds: float) -> None:
        """Add a window that ends `later_seconds` after the earlier ones; below 0, before them."""
        squares = fresh.total
        faded = merge_fading(self.sketch, fresh, later_seconds, self.half_life_seconds) ** 2
        self.squares = self.squares * faded + squares if later_seconds > 0 else self.squares + squares * faded


@dataclass
class FrequencyView:
    """Decayed counts: an event at time t weighs ``2 ** (-(time_ms - t) / half-life)``.

    With several half-lives (ascending), each key is counted with the longest whose rate agrees with the rates of all
    shorter ones (`weir.sketches.half_lives`): steady keys by a long memory, which is precise, and those that change by
    a short one, which is up to date. `FrequencyBank` does the same where events, not seconds, are the clock.
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
        """Add a window's serialised sketch; its newest event was at `event_ms`.

        A late pane is older than the view: it enters already faded, and `time_ms` does not change.

        Raises
        ------
        ValueError
            If the bytes are no sketch, or one whose parameters differ from those before.
        """
        fresh = [load(window_sketch) for _ in self.half_lives]
        if not self.memories:
            self.memories = [DecayedSketch(*one, one[1].total) for one in zip(self.half_lives, fresh, strict=True)]
            self.time_ms = event_ms
            return
        for memory, one in zip(self.memories, fresh, strict=True):
            memory.add(one, (event_ms - self.time_ms) / 1000)
        self.time_ms = max(self.time_ms, event_ms)

    def counts(self, keys: Keys) -> Floats:
        """Return the estimated decayed counts of keys, (n,), as events of the longest half-life."""
        return self.agreed(self.estimates(keys))

    def estimates(self, keys: Keys) -> Floats:
        """Return the estimated decayed counts of keys under each half-life, (n, half-lives)."""
        found = np.zeros((len(keys), len(self.half_lives)))
        for number, memory in enumerate(self.memories):
            found[:, number] = memory.sketch.estimate(keys)
        return found

    def agreed(self, estimates: Floats) -> Floats:
        """Return the `counts` of the keys that have these `estimates`, (n,)."""
        return agreed(list(estimates.T), self._totals, self._squares)

    def choose(self, estimates: Floats) -> Choice:
        """Return the number of the half-life that each key takes, (n,), given its `estimates`."""
        return choose(list(estimates.T), self._totals, self._squares)

    @property
    def to_longest(self) -> list[float]:
        """What counts under each half-life are multiplied by to become events of the longest one."""
        return to_longest(self._totals)

    @property
    def _totals(self) -> list[float]:
        return [memory.sketch.total for memory in self.memories] or [0.0] * len(self.half_lives)

    @property
    def _squares(self) -> list[float]:
        return [memory.squares for memory in self.memories] or [0.0] * len(self.half_lives)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the counts as arrays; `time_ms` is not among them."""
        found: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(bytearray(memory.sketch.to_bytes()), np.uint8)
            for name, memory in zip(self._names, self.memories, strict=False)
        }
        if len(self.memories) > 1:
            found["weighed"] = np.array([memory.squares for memory in self.memories])
        return found

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Take over the counts that `state_dict` describes."""
        if not state:
            self.memories = []
            return
        # A single memory needs no noise.
        squares = np.asarray(state["weighed"]).tolist() if "weighed" in state else [0.0]
        sketches = [load(np.asarray(state[name]).tobytes()) for name in self._names]
        self.memories = [DecayedSketch(*parts) for parts in zip(self.half_lives, sketches, squares, strict=True)]

    @property
    def _names(self) -> list[str]:
        """The arrays of the sketches; the longest half-life has the name that a single one has."""
        return [*(f"shorter.{number}" for number in range(len(self.half_lives) - 1)), "sketch"]


def merge_fading(
    counts: FrequencyEstimator, fresh: FrequencyEstimator, later_seconds: float, half_life_seconds: float
) -> float:
    """Merge `fresh` into `counts` and return the factor by which the older of the two was faded.

    Parameters
    ----------
    counts
        What has been counted so far; changed in place.
    fresh
        A period that ends `later_seconds` after `counts`, or, below 0, before; may be changed, too.
    half_life_seconds
        Time in which a count halves.

    Raises
    ------
    ValueError
        If the parameters of the estimators differ.
    """
    # Beyond a thousand half-lives the factor is 0, which no sketch accepts; a tiny one leaves nothing either.
    fading: float = max(0.5 ** (abs(later_seconds) / half_life_seconds), float(np.finfo(np.float64).tiny))
    (counts if later_seconds > 0 else fresh).decay(fading)
    counts.merge(fresh)
    return fading
