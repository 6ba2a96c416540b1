"""Refreshes the page's state, every second while a browser watches, and keeps the history of the charts' values."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import ClientSession

from weir.config import Settings
from weir.contracts import Store
from weir.freshness import event_to_answer
from weir.page.reader import ItemFeatures, Letter, NewestCommits, Reader
from weir.page.state import Rates, Samples, addresses, point_of, recall_points, scrape, state_of
from weir.serving.client import RetrievalClient
from weir.serving.monitor.results import WindowRecall

__all__ = ["History", "Watch"]


_LIMIT: Final = 720
_EARLY: Final = 0.1
"""Seconds by which a timer may fire early."""


class History:
    """The time series of the charts, by name; None for an unknown value.

    At `limit` points, every second point is dropped, and new points are taken half as often, so that the series always
    reach back to the start. `epoch` counts these reductions; positions from before a reduction are invalid.
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


_SECONDS: Final = 1.0
_SECONDS_ALONE: Final = 5.0
"""Seconds between refreshes without watchers, so that charts reach back to the start of the processes."""


class Watch:
    """Refreshes the state, the charts and the refused lines, and wakes the browsers' streams.

    Parameters
    ----------
    settings, store, client
        The settings, store and server of the stages.
    tags
        Collects the features of items.
    lines
        Whether refused lines are read.
    """

    def __init__(
        self, settings: Settings, store: Store, client: RetrievalClient, tags: ItemFeatures, *, lines: bool
    ) -> None:
        self.state: dict[str, Any] = {}
        self.history = History()
        self.recalls: dict[int, dict[str, Any]] = {}
        self._commits = NewestCommits(store, lines)
        self.letters: tuple[Letter, ...] = ()
        self.looks = 0
        self.watchers = 0
        self.ended = False
        self._urls = addresses(settings)
        self._awaited = f"no window is committed yet; {event_to_answer(settings)}"
        self._reader = Reader(store, client, self._commits, tags)
        self._rates = Rates()
        self._measured: tuple[WindowRecall, ...] = ()
        self._news = asyncio.Condition()

    async def run(self) -> None:
        """Refresh the state until cancelled."""
        async with ClientSession() as session:
            while True:
                scraped = await scrape(session, self._urls)
                await self._look(scraped)
                await self._tell()
                await self._pause()

    async def news(self, seen: int) -> None:
        """Wait until there is a refresh later than number `seen`, or until the end."""
        async with self._news:
            await self._news.wait_for(lambda: self.looks > seen or self.ended)

    async def end(self) -> None:
        """Wake all watchers, to end their streams."""
        self.ended = True
        async with self._news:
            self._news.notify_all()

    async def _tell(self) -> None:
        async with self._news:
            self.looks += 1
            self._news.notify_all()

    async def _pause(self) -> None:
        ends = time.monotonic() + _SECONDS_ALONE
        await asyncio.sleep(_SECONDS)
        while not self.watchers and time.monotonic() < ends:
            await asyncio.sleep(_SECONDS / 4)

    async def _look(self, scraped: dict[str, Samples | None]) -> None:
        """Refresh the state: a thread reads, and only the event loop changes the attributes."""
        seen = await asyncio.to_thread(self._reader.read)
        self.state = state_of(seen, self._commits, scraped)
        waits = self.state["replayed"] is None and not self.state["windows"]
        self.state["awaited"] = self._awaited if waits else None
        self.state["now"] = point_of(self.state, scraped, self._rates)
        self.history.add(self.state["time"], self.state["now"])
        self.letters = tuple(self._commits.letters)
        if seen.recalls != self._measured:
            self._measured = seen.recalls
            self.recalls = recall_points(seen.recalls)
