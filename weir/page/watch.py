"""Refresh the page's state, once a second while it is watched, and notify all watchers."""

import asyncio
import time
from typing import Any, Final

from aiohttp import ClientSession

from weir.config import Settings
from weir.contracts import Store
from weir.freshness import event_to_answer
from weir.page.commits import Letter, NewestCommits
from weir.page.history import History
from weir.page.reader import Reader
from weir.page.scrape import Samples, addresses, scrape
from weir.page.state import Rates, point_of, recall_points, state_of
from weir.page.tags import Tags
from weir.serving.client import RetrievalClient
from weir.serving.monitor.results import WindowRecall

__all__ = ["Watch"]

_SECONDS: Final = 1.0
_SECONDS_ALONE: Final = 5.0
"""Interval without watchers: the charts should still begin when the processes started."""


class Watch:
    """The state, the charts and the refused lines, as of the last refresh.

    Parameters
    ----------
    settings, store, client
        Those of the stages.
    tags
        Collects the features of items.
    lines
        Whether refused lines are read.
    """

    def __init__(self, settings: Settings, store: Store, client: RetrievalClient, tags: Tags, *, lines: bool) -> None:
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
        """Wait for a refresh after number `seen`, or for the end."""
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
