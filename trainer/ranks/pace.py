"""Step time per rank without waiting, to find a slow rank: the wall time of a step is the same on all ranks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from weir.trainer.ranks.workers import Workers

__all__ = ["Pace"]


@dataclass
class Pace:
    """Seconds of this rank's steps, excluding the time spent waiting for other ranks."""

    workers: Workers
    _seconds: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure a step, run inside the context."""
        started, waited = time.monotonic(), self.workers.waited
        yield
        self._seconds += time.monotonic() - started - (self.workers.waited - waited)
        self._steps += 1

    def of_ranks(self) -> list[float]:
        """Return the mean seconds per step of each rank since the last call; collective."""
        mean = torch.tensor([self._seconds / max(1, self._steps)], dtype=torch.float64)
        self._seconds, self._steps = 0.0, 0
        return [float(each) for each in self.workers.gather(mean).flatten()]
