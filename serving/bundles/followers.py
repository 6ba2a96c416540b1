"""Background tasks that follow histories, bundles, the catalogue and the takedown list.

Each of the four has its own task, which continues after every failure.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from weir.runtime.background import in_daemon
from weir.runtime.log_once import LogOnce
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.catalogue import LOOK_SECONDS, CatalogueFollower, Takedown
from weir.serving.histories.files import FollowedHistories

if TYPE_CHECKING:
    from weir.serving.histories.redis_reader import SharedHistories

__all__ = ["Bundles", "Followers", "forever"]

log = logging.getLogger(__name__)


class Bundles(Protocol):
    """Loads promoted bundles and holds them in memory, to answer queries.

    `bundle` is the champion's bundle, None if none is loaded. `loaded` has all loaded bundles, `bundle` first.
    `promoted` is the promoted version.
    """

    @property
    def bundle(self) -> LoadedBundle | None: ...  # noqa: D102

    @property
    def promoted(self) -> str | None: ...  # noqa: D102

    @property
    def loaded(self) -> list[LoadedBundle]: ...  # noqa: D102

    def refresh(self) -> object:
        """Check once for a newly promoted bundle."""


@dataclass
class Followers:
    """Runs background tasks that check histories, bundles, catalogue and takedown list for changes.

    Parameters
    ----------
    seconds
        Interval between two checks.
    ready
        Awaited when readiness changes: True once there is a bundle to serve, False if there is none any more.
    pushed
        Whether bundles are pushed to this process; then each refresh waits for the next bundle.
    """

    seconds: float
    histories: "FollowedHistories | SharedHistories"
    watcher: Bundles
    catalogue: CatalogueFollower
    takedown: Takedown
    ready: Callable[[bool], Awaitable[None]]
    pushed: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._looked, self._listed = asyncio.Event(), asyncio.Event()
        self._once, self._fetch_once = LogOnce(log), LogOnce(log)
        self._ready = False

    def start(self) -> None:
        """Start all tasks; the first bundle waits until histories and catalogue were checked once."""
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "following histories": self.refresh_histories,
            "following bundles": self.refresh_bundle,
        }
        if self.catalogue.is_named or self.takedown.is_named:
            steps["following the catalogue"] = self._refresh_catalogue
        else:
            self._listed.set()
        if isinstance(self.histories, FollowedHistories):
            for size, large in (("small", False), ("large", True)):
                steps[f"fetching {size} history files"] = partial(self._fetch, self.histories, large=large)
        for name, step in steps.items():
            self._follow(name, step, 0.0 if self.pushed and step == self.refresh_bundle else self.seconds)
        if self.takedown.is_named:
            self._follow("following the items taken down", self._refresh_takedown, min(self.seconds, LOOK_SECONDS))

    def ended(self) -> list[str]:
        """Return a sentence for each task that has ended, with the reason; tasks should run until cancelled."""
        return [f"{task.get_name()} has ended: {_why(task)}" for task in self.tasks if task.done()]

    async def refresh_histories(self) -> None:
        """Read newly committed windows; failures are logged and retried at the next check."""
        try:
            await asyncio.to_thread(self._catch_up)
        finally:
            self._looked.set()

    async def refresh_bundle(self) -> None:
        """Load the promoted bundle, once histories and catalogue have been checked; report changed readiness."""
        await self._looked.wait()
        await self._listed.wait()
        await asyncio.to_thread(self.watcher.refresh)
        ready = self.watcher.bundle is not None
        if ready != self._ready:
            self._ready = ready
            await self.ready(ready)

    def _follow(self, name: str, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Start a task that awaits `step` forever, with pauses of `seconds`."""
        self.tasks.append(asyncio.create_task(forever(step, seconds), name=name))

    async def _refresh_catalogue(self) -> None:
        """Check the catalogue; the first time also the takedown list, which must be read before the first bundle."""
        if not self._listed.is_set():
            await asyncio.to_thread(self.takedown.look, *self.watcher.loaded)
        try:
            await asyncio.to_thread(self.catalogue.look, *self.watcher.loaded)
        finally:
            self._listed.set()

    async def _refresh_takedown(self) -> None:
        await self._listed.wait()
        await asyncio.to_thread(self.takedown.look, *self.watcher.loaded)

    async def _fetch(self, histories: FollowedHistories, *, large: bool) -> None:
        if histories.due(large=large):
            await in_daemon(partial(self._fetch_files, histories, large=large))

    def _catch_up(self) -> None:
        try:
            self.histories.catch_up()
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.histories.metrics.errors.inc()
            self._once.failed(error, f"histories stay at window {self.histories.sequence}")

    def _fetch_files(self, histories: FollowedHistories, *, large: bool) -> None:
        try:
            histories.fetch(large=large)
            self._fetch_once.succeeded()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            histories.metrics.errors.inc()
            self._fetch_once.failed(error, "a file of histories could not be fetched, it is tried again")


async def forever(step: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Await `step` forever, with pauses of `seconds`; exceptions are logged."""
    while True:
        try:
            await step()
        except Exception:
            log.exception("following the store failed, it is tried again")
        await asyncio.sleep(seconds)


def _why(task: asyncio.Task[None]) -> str:
    return "cancelled" if task.cancelled() else repr(task.exception())
