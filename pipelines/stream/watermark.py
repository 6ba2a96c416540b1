"""The watermark of a partition.

Watermarks decide only how long windows wait. Counting does not depend on them: rows behind a watermark come with a
later window and count once, like all others.
"""

from dataclasses import dataclass

__all__ = ["Watermark"]


@dataclass
class Watermark:
    """A watermark `ms` (event time) that never decreases; `lateness_ms` and `idle_ms` are settings in event time."""

    ms: int
    lateness_ms: int
    idle_ms: int

    def read(self, newest_ms: int | None, arrived_ms: int | None, now_ms: int) -> None:
        """Advance after a batch: `newest_ms` is its newest valid event, `arrived_ms` its newest arrival (event time).

        `newest_ms` must not exceed the arrival of its message. It is limited to `now_ms`, so that an event ahead of the
        clock does not make later rows late. Without a valid row the arrival counts like silence up to then; otherwise a
        partition of refused messages would hold all windows.
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
