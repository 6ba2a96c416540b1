"""How late an event of a file may have happened: not after the file has arrived."""

from contracts import EventClock
from logs.config import LogConfig
from logs.sources import Partition

__all__ = ["latest_event_ms"]

_TICK_SECONDS = 1.0
"""Object stores and some file systems give times to the second, others to the tick of their kernel."""


def latest_event_ms(partition: Partition, clock: EventClock, config: LogConfig) -> int | None:
    """Return the newest event time (ms) that the rows of a partition may have; None without a modification time.

    That is the event time at which the file was last modified, by the clock of the store, and the tolerance for clocks
    that run ahead. What arrived before a replay was started (or started again) cannot be later than its start.
    """
    if partition.arrival_ms is None:
        return None
    arrived = max(partition.arrival_ms / 1000 + _TICK_SECONDS, clock.wall_origin)
    return clock.event_ms(arrived) + round(60_000 * config.clock_tolerance_minutes)
