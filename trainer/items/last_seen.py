"""Find rows last seen before a time, for eviction by time to live, without a scan of all rows.

Each sighting is noted under its time. If a row is seen again, the old note becomes stale and is skipped when its time
comes; when most notes are stale, they are rebuilt from the last-seen times.
"""

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from weir.trainer.items.stripes import Lines

__all__ = ["LastSeen"]


class LastSeen:
    """Index of lines by the time they were last seen; `notes` counts the entries, including stale ones.

    Parameters
    ----------
    lines
        Lines to watch at the start, (n,).
    seen_ms
        Last-seen times of all lines.
    """

    def __init__(self, lines: Lines, seen_ms: npt.NDArray[np.int64]) -> None:
        self._make(lines, seen_ms)

    def note(self, lines: Lines, time_ms: int) -> None:
        """Note that lines (n,) were last seen at a time."""
        if not len(lines):
            return
        if time_ms not in self._by_time:
            self._by_time[time_ms] = []
            heapq.heappush(self._times, time_ms)
        self._by_time[time_ms].append(lines)
        self.notes += len(lines)

    def before(self, time_ms: int, seen_ms: npt.NDArray[np.int64]) -> Lines:
        """Return the lines last seen before a time, ascending, and remove them."""
        found = [np.empty(0, np.int64)]
        while self._times and self._times[0] < time_ms:
            then = heapq.heappop(self._times)
            lines = np.concatenate(self._by_time.pop(then))
            self.notes -= len(lines)
            found.append(lines[seen_ms[lines] == then])
        return np.unique(np.concatenate(found))

    def tidy(self, count: int, lines: Callable[[], Lines], seen_ms: npt.NDArray[np.int64]) -> None:
        """Rebuild the index from the watched `lines`, about `count` of them, if most notes are stale."""
        if self.notes > 4 * max(count, 1024):
            self._make(lines(), seen_ms)

    def _make(self, lines: Lines, seen_ms: npt.NDArray[np.int64]) -> None:
        ordered = lines[np.argsort(seen_ms[lines], kind="stable")]
        times, first = np.unique(seen_ms[ordered], return_index=True)
        parts = np.split(ordered, first[1:]) if len(ordered) else []
        self._by_time = {int(one): [part] for one, part in zip(times, parts, strict=True)}
        # A sorted list is a valid heap.
        self._times = times.tolist()
        self.notes = len(lines)
