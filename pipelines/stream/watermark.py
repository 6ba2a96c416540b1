"""The watermark of a partition.

Watermarks decide only how long windows wait. Counting does not depend on them: rows behind a watermark come with a
later window and count once, like all others.
"""

from dataclasses import dataclass

__all__ = ["Watermark"]


@dataclass
class Watermark:
    """The watermark of one partition: `ms` (event time) never decreases.

    It stays `lateness_ms` behind the newest event; a partition without events for `idle_ms` does not hold it back. Both
    are in event time.
    """

    ms: int
    lateness_ms: int
    idle_ms: int

    def read(self, newest_ms: int | None, arrived_ms: int | None, now_ms: int) -> None:
        """Advance after a batch with newest valid event `newest_ms` and newest arrival `arrived_ms` (event time).

        `newest_ms` must not exceed the arrival of its message. It is limited to `now_ms`, so that an event ahead of the
        clock does not make later rows late. Without a valid row, the arrival counts like silence until then; otherwise
        a partition of refused messages would hold all windows.
        """
        if newest_ms is not None:
            self._rise(min(newest_ms, now_ms) - self.lateness_ms)
        elif arrived_ms is not None:
            self.silent(min(arrived_ms, now_ms))

    def silent(self, until_ms: int) -> None:
        """Advance after the partition has been empty for `idle_ms` up to `until_ms`."""
        self._rise(until_ms - self.idle_ms - self.lateness_ms)

    def _rise(self, ms: int) -> None:
        self.ms = max(self.ms, ms)
