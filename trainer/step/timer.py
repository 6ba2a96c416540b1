"""A timer of the parts of a training step."""

import time
from collections.abc import Callable

__all__ = ["Clock", "StepTimer"]

Clock = Callable[[], float]


class StepTimer:
    """Seconds by part of a step, in the order in which the parts ended.

    Parameters
    ----------
    clock
        Returns seconds from an arbitrary start.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock, self._since = clock, clock()
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """Add to a part the time since the last part ended, or since the start."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now
