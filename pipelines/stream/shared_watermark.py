"""The watermark that the readers of a process report to the engine: the lowest of theirs.

Beam's runner on Flink holds the watermark of a task for each partition that waits for its next turn, but not for the
one whose turn it is: meanwhile the watermark may rise to that of the others in the task, and what the partition brings
then would be late, and be dropped. If all report the lowest watermark of any, none is ever behind what was reported.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

__all__ = ["SETTLE_SECONDS", "SharedWatermark", "shared_watermark"]

SETTLE_SECONDS: Final = 3.0
"""After the last partition has come, others of the same task may still follow: until then nothing rises."""

_UNUSED_SECONDS: Final = 60.0
"""A partition that had no turn for so long is read by another process now."""


@dataclass
class SharedWatermark:
    """The watermarks of the partitions of a topic that this process reads, in ms of event time."""

    now: Callable[[], float] = time.monotonic
    _known: dict[int, tuple[int, float]] = field(default_factory=dict, init=False)
    _settled_at: float = field(default=0.0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def rise(self, partition: int, ms: int) -> int | None:
        """Take in the watermark of a partition (by its number); return the lowest of all, None while it is unknown."""
        with self._lock:
            now = self.now()
            if partition not in self._known:
                self._settled_at = now + SETTLE_SECONDS
            self._known[partition] = ms, now
            self._known = {key: one for key, one in self._known.items() if one[1] >= now - _UNUSED_SECONDS}
            return min(one[0] for one in self._known.values()) if now >= self._settled_at else None

    def end(self, partition: int) -> None:
        """Forget a partition that is read no further."""
        with self._lock:
            self._known.pop(partition, None)


_shared: dict[str, SharedWatermark] = defaultdict(SharedWatermark)


def shared_watermark(topic_key: str) -> SharedWatermark:
    """Return that of a topic in this process."""
    return _shared[topic_key]
