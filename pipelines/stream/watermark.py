"""The watermark of a partition: the event time below which nothing more is expected of it.

Nothing depends on its truth: rows behind it come with a later window, and are counted once like all others. It decides
how long windows wait.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["UNASKED_SECONDS", "Silence", "Watermark"]

UNASKED_SECONDS: Final = 5.0


@dataclass
class Watermark:
    """`ms` is event time and never goes back; `lateness_ms` and `idle_ms` are the settings, in event time."""

    ms: int
    lateness_ms: int
    idle_ms: int

    def read(self, newest_ms: int | None, arrived_ms: int | None, now_ms: int) -> None:
        """Take in what was read: the newest valid event, and when the newest message arrived (event time).

        `newest_ms` is no later than its message arrived. An event ahead of the reader's clock says nothing: the rows
        behind it would wait until then. Where no row was valid, the arrival says how far the partition is, as silence
        does; else a partition of refused messages would hold all windows.
        """
        if newest_ms is not None:
            self._rise(min(newest_ms, now_ms) - self.lateness_ms)
        elif arrived_ms is not None:
            self.silent(min(arrived_ms, now_ms))

    def silent(self, until_ms: int) -> None:
        """Take in that the partition had nothing to read, for `idle_ms` up to a time."""
        self._rise(until_ms - self.idle_ms - self.lateness_ms)

    def _rise(self, ms: int) -> None:
        self.ms = max(self.ms, ms)


@dataclass
class Silence:
    """For how long the brokers have said that a partition has nothing unread.

    Times are wall-clock seconds at which the broker was asked, so an answer that comes late claims nothing more. What
    was not asked for longer than `idle_seconds` is no silence: after an outage, producers send what they have kept. A
    few seconds are allowed at least, for an engine that is slow to ask.
    """

    idle_seconds: float
    _since: float | None = None
    _until: float | None = None

    @property
    def _patience(self) -> float:
        return max(self.idle_seconds, UNASKED_SECONDS)

    def broken(self) -> None:
        """There was something to read, or nobody answered."""
        self._since = self._until = None

    def answered(self, asked_at: float) -> bool:
        """Take in that there was nothing unread at this time; say whether that has lasted for `idle_seconds`."""
        if self._since is None or self._until is None or not 0 <= asked_at - self._until <= self._patience:
            self._since = asked_at
        self._until = asked_at
        return asked_at - self._since >= self.idle_seconds
