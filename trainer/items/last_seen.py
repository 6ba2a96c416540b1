"""Which rows have not been seen since a time: by time, so that nobody looks at all rows.

Every note of a row is kept under its time. A row that was seen again has a note that is out of date, which is skipped
when its time comes; when most notes are out of date, all are made again from the times themselves.
"""

import heapq

import numpy as np
import numpy.typing as npt

from trainer.items.rows import TableRows, no_rows

__all__ = ["LastSeen"]


class LastSeen:
    """Rows by the time they were last seen; `notes` is how many are kept, some of them out of date.

    Parameters
    ----------
    rows
        The rows (n,) that are watched at the start.
    seen_ms
        Times of all rows, (capacity,).
    """

    def __init__(self, rows: TableRows, seen_ms: npt.NDArray[np.int64]) -> None:
        self._make(rows, seen_ms)

    def note(self, rows: TableRows, time_ms: int) -> None:
        """Note that rows (n,) were last seen at a time."""
        if not len(rows):
            return
        if time_ms not in self._by_time:
            self._by_time[time_ms] = []
            heapq.heappush(self._times, time_ms)
        self._by_time[time_ms].append(rows)
        self.notes += len(rows)

    def before(self, time_ms: int, seen_ms: npt.NDArray[np.int64]) -> TableRows:
        """Return the rows last seen before a time, ascending, and drop them."""
        found = [no_rows()]
        while self._times and self._times[0] < time_ms:
            then = heapq.heappop(self._times)
            rows = np.concatenate(self._by_time.pop(then))
            self.notes -= len(rows)
            found.append(TableRows(rows[seen_ms[rows] == then]))
        return TableRows(np.unique(np.concatenate(found)))

    def tidy(self, rows: TableRows, seen_ms: npt.NDArray[np.int64]) -> None:
        """Make all notes again for the `rows` (n,) that are watched, once most are out of date."""
        if self.notes > 4 * max(len(rows), 1024):
            self._make(rows, seen_ms)

    def _make(self, rows: TableRows, seen_ms: npt.NDArray[np.int64]) -> None:
        ordered = rows[np.argsort(seen_ms[rows], kind="stable")]
        times, first = np.unique(seen_ms[ordered], return_index=True)
        parts = np.split(ordered, first[1:]) if len(ordered) else []
        self._by_time = {int(one): [TableRows(part)] for one, part in zip(times, parts, strict=True)}
        # Ascending numbers are a heap.
        self._times = times.tolist()
        self.notes = len(rows)
