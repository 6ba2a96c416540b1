"""The end of a process that answers: it opens the versions that its parent builds, and serves them when told to."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.processes.arrays import MappedArrays, Package
from weir.serving.processes.channel import Channel, Message, close_all
from weir.serving.processes.link import ParentLink

__all__ = ["Member"]

log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.5
"""How long one `refresh` waits for the parent: a stopping process waits for it."""


@dataclass
class Member:
    """Holds the served bundle in `bundle`, as `BundleWatcher` does; one thread calls `refresh`.

    `describe` prepares a version before it answers. A version that cannot be opened ends the process: its parent has
    opened it, so the fault is here.
    """

    channel: Channel
    link: ParentLink
    threads: int = 1
    describe: Callable[[LoadedBundle, LoadedBundle | None], None] = lambda _, __: None
    bundle: LoadedBundle | None = None
    promoted: str | None = None
    _opened: LoadedBundle | None = field(default=None, init=False)
    _arrays: MappedArrays = field(default_factory=MappedArrays, init=False)
    _has_started: bool = field(default=False, init=False)
    _may_listen: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def loaded(self) -> list[LoadedBundle]:
        """The bundles that answer: one, or none."""
        return [bundle] if (bundle := self.bundle) is not None else []

    def refresh(self) -> None:
        """Do what the parent says next, if it says anything now."""
        if not self._has_started:
            self._has_started = True
            self.channel.send(Message("started"))
        try:
            message = self.channel.receive(_WAIT_SECONDS)
        except TimeoutError:
            return
        if message is None:
            time.sleep(
                _WAIT_SECONDS
            )  # the parent has ended, and this process is about to (`weir.serving.processes.link`)
            return
        try:
            self._obey(message)
        except Exception:
            log.exception("bundle %s cannot be opened; this process ends", message.version)
            self.channel.close()
            os.kill(os.getpid(), signal.SIGTERM)

    async def may_listen(self) -> None:
        """Wait until the parent wants calls to come here: not before a version is served, where there is one."""
        while not self._may_listen.is_set():
            await asyncio.sleep(0.01)

    def listens(self) -> None:
        """Tell the parent that calls are answered."""
        self.channel.send(Message("listening"))

    def _obey(self, message: Message) -> None:
        self.promoted = message.version
        if message.kind == "open" and message.package is not None:
            self._opened = self._open(message.package)
            self.channel.send(Message("opened"))
        elif message.kind == "serve":
            self.bundle, self._opened = self._opened, None
            self.channel.send(Message("serving"))
        elif message.kind == "drop":
            self.bundle = self._opened = None
            self.channel.send(Message("serving"))
        elif message.kind == "listen":
            self._may_listen.set()

    def _open(self, package: Package) -> LoadedBundle:
        try:
            bundle: LoadedBundle = self._arrays.open(package).opened(self.threads)
        finally:
            close_all([package.pickle, *package.files])
        self.describe(bundle, self.bundle)
        return bundle
