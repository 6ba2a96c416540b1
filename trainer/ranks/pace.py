"""Which rank is slow: ranks step together, so the time of a step tells it of none."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from weir.trainer.ranks.workers import Workers

__all__ = ["Pace"]


@dataclass
class Pace:
    """The seconds of this rank's steps, without those in which it waited for other ranks."""

    workers: Workers
    _seconds: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count a step, which is taken inside."""
        started, waited = time.monotonic(), self.workers.waited
        yield
        self._seconds += time.monotonic() - started - (self.workers.waited - waited)
        self._steps += 1

    def of_ranks(self) -> list[float]:
        """Return the mean seconds of a step, by rank, since the last call; all ranks must call it."""
        mean = torch.tensor([self._seconds / max(1, self._steps)], dtype=torch.float64)
        self._seconds, self._steps = 0.0, 0
        return [float(each) for each in self.workers.gather(mean).flatten()]
