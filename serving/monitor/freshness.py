"""How long events take to become servable: from when they happened to the first served bundle trained on them."""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from weir.contracts import EventClock, Store, WindowLog, WindowManifest, columns
from weir.serving.client import Info
from weir.serving.monitor.results import Freshness

__all__ = ["Coverage", "seconds_to_servable"]

_QUANTILES = np.linspace(0, 1, 100)
_SUMMARY = np.linspace(0, 1, 21)


@dataclass
class Coverage:
    """Follows how far the served bundles have got; windows up to `reported` are known to be covered.

    What the first bundle seen covers was servable before the monitor started, and is not reported, unless the server
    had been seen without a bundle.
    """

    windows: WindowLog
    reported: int = -1
    _covered: int | None = field(default=None, init=False)

    def nothing_served(self) -> None:
        """Record that the server has no bundle."""
        if self._covered is None:
            self._covered = self.reported

    def newly_covered(self, info: Info) -> list[WindowManifest]:
        """Return the windows that the served bundle covers and none before it did, in commit order."""
        before, self._covered = (
            self._covered,
            max(info.trained_sequence, -1 if self._covered is None else self._covered),
        )
        # Commits after the served ones are not read: a server may stay far behind for long.
        if before is None or before == self._covered:
            return []
        return list(takewhile(self._is_covered, self.windows.follow(self.windows.left(before))))

    def _is_covered(self, manifest: WindowManifest) -> bool:
        return self._covered is not None and manifest.sequence <= self._covered


def seconds_to_servable(
    store: Store, windows: WindowLog, manifest: WindowManifest, info: Info
) -> tuple[npt.NDArray[np.float64], Freshness]:
    """Return 100 quantiles of the seconds that a window's events took, and their summary.

    Seconds are those of an observer: a replay that runs ten times as fast shortens them by ten (`EventClock`).
    """
    clock = EventClock.of(store)
    times = windows.all_examples(manifest, [columns.TIMESTAMP])[columns.TIMESTAMP].to_numpy()
    chosen = np.quantile(times, _QUANTILES) if len(times) else np.empty(0)
    seconds = np.array([info.servable_time - clock.wall_time(round(ms)) for ms in chosen])
    quantiles = np.quantile(seconds, _SUMMARY).tolist() if len(seconds) else [0.0] * len(_SUMMARY)
    return seconds, Freshness(
        bundle_version=info.bundle_version,
        servable_at=info.servable_time,
        seconds_min=quantiles[0],
        seconds_median=quantiles[len(quantiles) // 2],
        seconds_max=quantiles[-1],
        quantiles=tuple(quantiles),
        events=len(times),
    )
