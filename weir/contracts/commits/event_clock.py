"""The event clock: maps event time to wall time and back.

In a live log event time is wall time. A replay runs faster, over events of the past; it stores its clock, so that ages
and delays are still given in the seconds that an observer waits. After the end of a replayed log, time runs at speed 1:
events added by hand are then as far apart as their timestamps.
"""

import time

from pydantic import Field

from weir.contracts.storage.documents import Document, read_document, write_document
from weir.contracts.storage.store import Store

__all__ = ["EventClock"]

_NAME = "CLOCK.json"


class EventClock(Document):
    """``CLOCK.json``: at wall time `wall_origin` (s) the stream was at event time `event_origin` (s).

    The stream runs at `speed`, and from event time `event_end` (s) on, if given, at speed 1.
    """

    event_origin: float = 0.0
    wall_origin: float = 0.0
    speed: float = Field(default=1.0, gt=0)
    event_end: float | None = None

    @classmethod
    def of(cls, store: Store) -> "EventClock":
        """Return the clock of a store's replay, else the wall clock; raises `CorruptArtefactError`."""
        try:
            return read_document(store, _NAME, cls)
        except FileNotFoundError:
            return cls()

    def save(self, store: Store) -> None:
        """Write this clock to the store."""
        write_document(store, _NAME, self)

    def wall_time(self, event_ms: int) -> float:
        """Return the wall time of an event, in seconds since 1970."""
        event = event_ms / 1000
        fast = event if self.event_end is None else min(event, self.event_end)
        return self.wall_origin + (fast - self.event_origin) / self.speed + (event - fast)

    def replayed(self) -> float | None:
        """Return the finished share of a replay, from 0 to 1; None without a replay."""
        if self.event_end is None:
            return None
        span = self.wall_time(round(1000 * self.event_end)) - self.wall_origin
        return min(1.0, (time.time() - self.wall_origin) / span) if span > 0 else 1.0

    def event_ms(self, wall_time: float | None = None) -> int:
        """Return the event time at a wall time (default: now), in milliseconds."""
        now = time.time() if wall_time is None else wall_time
        event = self.event_origin + (now - self.wall_origin) * self.speed
        if self.event_end is not None and event > self.event_end:
            event = self.event_end + (event - self.event_end) / self.speed
        return round(1000 * event)
