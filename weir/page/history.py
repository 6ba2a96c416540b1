"""Time series in bounded memory: the longer the series, the coarser its points."""

from collections.abc import Mapping
from typing import Final

__all__ = ["History"]

_LIMIT: Final = 720
_EARLY: Final = 0.1
"""Seconds by which a timer may fire early."""


class History:
    """Named values over time; None for an unknown value.

    At `limit` points, every second one is dropped, and new ones are taken half as often, so that the series always
    reaches back to the start. `epoch` counts these reductions, each of which makes earlier positions invalid.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self.epoch = 0
        self.times: list[float] = []
        self._values: list[Mapping[str, float | None]] = []
        self._limit, self._interval = limit, 1.0

    def __len__(self) -> int:
        return len(self.times)

    def add(self, time: float, values: Mapping[str, float | None]) -> None:
        """Add a point at `time` (seconds), unless it is too close to the last one."""
        if self.times and time - self.times[-1] < self._interval - _EARLY:
            return
        self.times.append(time)
        self._values.append(values)
        if len(self.times) >= self._limit:
            self.times, self._values = self.times[::2], self._values[::2]
            self._interval *= 2
            self.epoch += 1

    def since(self, position: int) -> dict[str, list[float | None]]:
        """Return the values since a position as columns by name, `time` among them."""
        values = self._values[position:]
        names = sorted({name for point in values for name in point})
        columns: dict[str, list[float | None]] = {name: [point.get(name) for point in values] for name in names}
        return {"time": list(self.times[position:]), **columns}
