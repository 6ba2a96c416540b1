"""The recent frequency of items: the sketches of the windows, merged, with old counts fading by event time.

In-batch negatives are drawn by what the stream carries now, so log Q comes from this view and not from all time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import sketches
from contracts import Keys

__all__ = ["FrequencyView"]


@dataclass
class FrequencyView:
    """Decayed counts: one of an event at time t weighs ``2 ** (-(time_ms - t) / half-life)``."""

    half_life_seconds: float
    sketch: sketches.FrequencyEstimator | None = None
    time_ms: int = 0

    def add(self, window_sketch: bytes, event_ms: int) -> None:
        """Add a window's serialised sketch, whose newest event was at `event_ms`.

        A late pane is older than the view; it enters already faded, and the view's time stands.

        Raises
        ------
        ValueError
            If the bytes are no sketch, or one whose parameters differ from those before.
        """
        fresh = sketches.load(window_sketch)
        if self.sketch is None:
            self.sketch, self.time_ms = fresh, event_ms
            return
        fading = 0.5 ** (abs(event_ms - self.time_ms) / (1000 * self.half_life_seconds))
        # Beyond a thousand half-lives the factor is 0, which no sketch takes: what is left is nothing all the same.
        (self.sketch if event_ms > self.time_ms else fresh).decay(max(fading, np.finfo(np.float64).tiny))
        self.sketch.merge(fresh)
        self.time_ms = max(self.time_ms, event_ms)

    def counts(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return the estimated decayed counts of keys, (n,)."""
        if self.sketch is None:
            return np.zeros(len(keys))
        return self.sketch.estimate(keys)

    def log_q(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return the log-probability of each key among the keys given, (n,).

        It is normalised over them, because only items of the table are drawn: with the mass of other items in it,
        "improved" would weigh its rows wrongly. It stays below 0 for a lone item too.
        """
        if not len(keys):
            return np.zeros(0)
        raw = self.sketch.log_q(keys) if self.sketch is not None else np.zeros(len(keys))
        normalised: npt.NDArray[np.float64] = np.minimum(raw - np.logaddexp.reduce(raw), -1e-6)
        return normalised
