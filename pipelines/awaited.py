"""What the next commit waits for: said within the first seconds, and again now and then while nothing is committed."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from weir.pipelines.config import PipelineConfig

__all__ = ["Awaited", "awaited_window"]

logger = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 960.0


@dataclass
class Awaited:
    """Logs a sentence 2 s after the start, and after 1, 2, 4, ... up to 16 minutes without a commit."""

    clock: Callable[[], float] = time.monotonic
    _next: float = field(init=False)
    _pause: float = field(default=_AGAIN_SECONDS, init=False)

    def __post_init__(self) -> None:
        self._next = self.clock() + _FIRST_SECONDS

    def over(self) -> None:
        """Start again: something was committed, or nothing waits."""
        self._pause = _AGAIN_SECONDS
        self._next = max(self._next, self.clock() + self._pause)

    def say(self, sentence: Callable[[], str]) -> None:
        """Log what is awaited, if it is time to."""
        if (now := self.clock()) < self._next:
            return
        logger.info("%s", sentence())
        self._next, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_SECONDS)


def awaited_window(config: PipelineConfig, start_ms: int, watermark_ms: int, holder: str = "") -> str:
    """Return when the window that starts at `start_ms` is committed.

    `holder` names the partition whose watermark is the lowest, where each has one. Times are event times in UTC.
    """
    end_ms = start_ms + config.window_ms
    late, idle = config.allowed_lateness_seconds, config.idle_seconds
    whose = f"the watermark of {holder}" if holder else "the watermark"
    return (
        f"the window from {_moment(start_ms)} to {_moment(end_ms)} is committed when {whose}, the newest event less "
        f"{late} s of lateness, passes its end, or after {idle:g} s without input; it is at {_moment(watermark_ms)}"
    )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
