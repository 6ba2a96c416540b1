"""A server of several processes: this one builds versions and looks after those that answer.

It follows ``bundles/CURRENT`` and shares what it has read (`weir.serving.processes.crew`). It answers no calls, but
scrapes for all, and writes the log of all. A process that ends is started again.
"""

import asyncio
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from weir.contracts import BundleLog, Store, UserError
from weir.runtime.background import in_daemon
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import stop_signal
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.catalogue import CatalogueFiles
from weir.serving.bundles.followers import forever
from weir.serving.bundles.loading import Memory, give_back
from weir.serving.bundles.watcher import BundleWatcher, DeltaPolicy
from weir.serving.config import ServingConfig
from weir.serving.metrics import BundleMetrics, ProcessMetrics
from weir.serving.processes.channel import Channel
from weir.serving.processes.crew import Crew, Seat
from weir.serving.processes.link import ProcessLink
from weir.serving.processes.merged import ServerCollector
from weir.serving.processes.ports import reserved
from weir.serving.processes.version import Models

__all__ = ["Parent", "ProcessEndedError"]

log = logging.getLogger(__name__)

_LASTING: Final = 10.0
"""A process that has run for so many seconds is started again at once; others later and later."""

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_EXTRA_GRACE: Final = 10.0


class ProcessEndedError(UserError):
    """A process ended before the server was up."""

    hint = "its log says why"


@dataclass
class Parent:
    """The parent of `config.processes` processes; `run` starts and ends them."""

    store: Store
    config: ServingConfig
    files: CatalogueFiles
    own: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True))

    def __post_init__(self) -> None:
        config = self.config
        ProcessCollector(registry=self.own)
        self.crew = Crew()
        self.metrics = ProcessMetrics(self.own)
        self.collector = ServerCollector(self.own, self._pids)
        self.watcher = BundleWatcher(
            self.store,
            BundleMetrics(self.own),
            "cpu",
            config.threads,
            # Nobody searches in this process, so nobody waits while its index is changed.
            DeltaPolicy("in_place", Memory.found(config.memory_bytes).shared_by(1 + config.processes)),
            share=self._share,
            drop=self.crew.drop,
        )
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises `ProcessEndedError` where a process ends at its start."""
        stopped, config = stop_signal(), self.config
        registry = CollectorRegistry()
        registry.register(self.collector)
        with reserved(config) as ports, exposed(registry, config.metrics_host, config.metrics_port):
            joined = [asyncio.Event() for _ in range(config.processes)]
            keepers = [asyncio.create_task(self._keep(number, ports, joined[number])) for number in range(len(joined))]
            up = asyncio.create_task(self._follow(joined))
            waits = asyncio.create_task(stopped.wait())
            try:
                # A keeper returns only where its process ends before it has joined.
                done, _ = await asyncio.wait([*keepers, up, waits], return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                up.cancel()
                await self._end(keepers)
        log.info("stopped")

    def _pids(self) -> list[int]:
        return [os.getpid(), *(process.pid for process in list(self._processes.values()))]

    def _share(self, bundle: LoadedBundle) -> LoadedBundle:
        self.crew.promoted = self.watcher.promoted
        return self.crew.share(bundle, Models.read(BundleLog(self.store), bundle.manifest))

    async def _follow(self, joined: list[asyncio.Event]) -> None:
        """Read versions as soon as all processes are here, so that all get ready together."""
        for event in joined:
            await event.wait()
        log.info("%d processes listen", len(joined))

        async def refresh() -> None:
            await in_daemon(self._refresh)

        await forever(refresh, self.config.poll_seconds)

    def _refresh(self) -> None:
        if self.watcher.refresh():
            # What was read is garbage by now: the processes, this one included, map what was made of it.
            give_back()

    async def _keep(self, number: int, config: ServingConfig, joined: asyncio.Event) -> None:
        """Keep a process running; returns an error where it ends before it has answered anything."""
        pause = _FIRST_PAUSE
        while True:
            started = time.monotonic()
            code = await self._run(number, config, joined)
            if self._stopping.is_set():
                return
            if not joined.is_set():
                raise ProcessEndedError(f"process {number} ended with status {code} before the server was up")
            self.metrics.restarts.inc()
            pause = _FIRST_PAUSE if time.monotonic() - started > _LASTING else min(2 * pause, _LONGEST_PAUSE)
            log.error("process %d ended with status %d; it is started again in %.1f s", number, code, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return

    async def _run(self, number: int, config: ServingConfig, joined: asyncio.Event) -> int:
        """Start a process, let it join, and wait for its end; returns its status."""
        mine, its = Channel.pair()
        connection, its_connection = Pipe()
        descriptors = (its.socket.fileno(), its_connection.fileno())
        command = [sys.executable, "-P", "-m", "weir.serving.processes.main", *map(str, descriptors)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)
        self._processes[number] = process
        its.close()
        its_connection.close()
        link, seat = ProcessLink(number, connection), Seat(number, mine, process.kill)
        joining = asyncio.create_task(self._join(link, seat, config, joined))
        try:
            await in_daemon(partial(_waited, process))
            await joining
        finally:
            await asyncio.to_thread(self.crew.leave, seat)
            await asyncio.to_thread(link.read_to_end)
            mine.close()
            self.collector.ended(link)
            self.metrics.running.set(len(self.collector.links))
            self._processes.pop(number, None)
        return process.returncode

    async def _join(self, link: ProcessLink, seat: Seat, config: ServingConfig, joined: asyncio.Event) -> None:
        """Tell a process what to do, and count on it as soon as it takes calls."""

        def join() -> None:
            with suppress(OSError):  # it has ended already
                link.start((self.store, config, self.files))
                self.crew.join(seat)

        await in_daemon(join)
        if self.crew.has(seat):
            self.collector.links[link.number] = link
            self.metrics.running.set(len(self.collector.links))
            joined.set()

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        """Have all processes drain, and kill those that do not end in time."""
        self._stopping.set()
        for process in list(self._processes.values()):
            process.terminate()
        grace = self.config.drain_seconds + self.config.grace_seconds + _EXTRA_GRACE
        _, late = await asyncio.wait(keepers, timeout=grace)
        for process in list(self._processes.values()):
            log.error("a process did not stop within %.0f s; it is killed", grace)
            process.kill()
        for task in late:
            task.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def _waited(process: subprocess.Popen[bytes]) -> None:
    process.wait()
