"""Rate limit per caller: a token bucket."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["Rates"]

_MOST_CALLERS: Final = 65_536


class Rates:
    """Token buckets of at most 65,536 callers: beyond that, the one unused for longest is dropped and counts as full.

    Parameters
    ----------
    per_second
        Calls per second that refill each bucket.
    burst
        Most calls that a bucket holds.
    now
        The clock, in seconds.
    """

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._burst, self._now = burst, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a call from a caller's bucket and return 0; if it is empty, return the seconds until it holds one."""
        now = self._now()
        held, filled = self._buckets.pop(caller, (float(self._burst), now))
        held = min(self._burst, held + (now - filled) * self.per_second)
        waits = max(0.0, 1 - held) / self.per_second
        self._buckets[caller] = (held if waits else held - 1, now)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return waits
