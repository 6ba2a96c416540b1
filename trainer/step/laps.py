"""Where the time of a step goes."""

import time
from collections.abc import Callable

__all__ = ["Clock", "Laps"]

Clock = Callable[[], float]


class Laps:
    """Seconds by part of a step, in the order in which the parts ended.

    Parameters
    ----------
    clock
        Seconds from any moment on; what has passed since the last call counts.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock, self._since = clock, clock()
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """Give a part the time since the last one ended, or since the start."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now
