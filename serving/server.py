"""The server process: bundle and histories from the store, answers over gRPC and HTTP, and metrics.

`serve` listens, opens the histories, loads the promoted bundle, follows the store until SIGTERM, and drains. The event
loop parses and answers; one thread (`weir.serving.batching.batcher`) runs tower and search; others follow the store.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import uvloop
from grpc_health.v1 import health, health_pb2
from prometheus_client import CollectorRegistry, ProcessCollector

from weir.contracts import Store
from weir.runtime.listening import in_url
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import all_ended, first_of, stop_signal
from weir.serving.batching.batcher import Batcher
from weir.serving.bundles.catalogue import CatalogueFiles, CatalogueFollower, Takedown
from weir.serving.bundles.followers import Bundles, Followers
from weir.serving.config import ServingConfig
from weir.serving.histories.files import FollowedHistories
from weir.serving.index.index import pick_gpu
from weir.serving.listeners import open_to_probes
from weir.serving.metrics import CatalogueMetrics, HistoryMetrics, RequestMetrics, RpcMetrics, ServedMetrics
from weir.serving.native.answering import Answering, shown_together
from weir.serving.native.columns import compiled
from weir.serving.native.front import NativeFront
from weir.serving.native.plain import PlainRetriever
from weir.serving.process_setup import allow_files, warn_of_old_kernel
from weir.serving.rpc.instrumentation import AccessLog, MetricsInterceptor
from weir.serving.search.queries import Answer, Task
from weir.serving.search.retriever import Retriever
from weir.serving.served_lists import ServedLists, ServedWriter
from weir.serving.transports import SERVICE, CallHandlers, CallObservers, Transports
from weir.serving.variants import VariantRouter, bundles_of, check_roles, only

if TYPE_CHECKING:
    from weir.serving.histories.redis_reader import SharedHistories
    from weir.serving.processes.member import Member
    from weir.serving.rpc.tracing import Traces

__all__ = ["Server", "prepare", "serve"]

log = logging.getLogger(__name__)

LIVENESS = "liveness"
"""Health service of the process alone: a server that waits for its first bundle is healthy and must not be restarted.

It is NOT_SERVING if only a restart helps: the search thread has ended or hangs, or a follower has ended.
"""

HISTORIES = "histories"
"""Health service of the histories in Redis: NOT_SERVING while all users count as unknown; the server still answers."""

_OTHER_FILES: Final = 1024
"""Open files besides client connections, mostly histories: a handful per user shard."""

_SWITCH_SECONDS: Final = 0.001
"""Seconds that a thread may hold the interpreter while the event loop waits: a fifth of Python's default."""

_STATUS = health_pb2.HealthCheckResponse


def serve(
    store: Store, config: ServingConfig, files: CatalogueFiles | None = None, variants: Sequence[str] = ()
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    `files` names the catalogue and the takedown list, `variants` are the variants in the settings. With
    `config.processes` above 1, worker processes answer (`weir.serving.processes.parent`). Raises `ValueError` if
    several processes would have to share a GPU or to answer from two bundles, and `VariantError` if the roles of the
    variants are ambiguous.
    """
    files = files or CatalogueFiles()
    warn_of_old_kernel()
    check_roles(store, variants)
    if config.processes == 1:
        prepare(config)
        uvloop.run(Server(store, config, files=files, variants=variants).run())
        return
    if variants:
        raise ValueError(
            f"{config.processes} processes answer from one bundle: with variants set serving.processes = 1"
        )
    from weir.serving.processes.parent import Parent  # noqa: PLC0415 - it imports this module for the others

    if config.device == "gpu":
        raise ValueError(f"{config.processes} processes cannot search on one GPU: set device = 'cpu' or processes = 1")
    uvloop.run(Parent(store, config.model_copy(update={"device": "cpu"}), files).run())


def prepare(config: ServingConfig) -> None:
    """Set up this process for answering: check the device, raise the limit of open files, switch threads more often.

    Raises `ValueError` if `device` is ``gpu`` and there is none.
    """
    pick_gpu(config.device)
    allow_files(config.max_connections + _OTHER_FILES)
    sys.setswitchinterval(_SWITCH_SECONDS)


@dataclass
class Server:
    """The parts of a process that answers queries; `run` starts and ends them.

    With `member`, the process is one of several: its parent sends it bundles and shows its metrics. `variants` are the
    variants in the settings.
    """

    store: Store
    config: ServingConfig
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True))
    files: CatalogueFiles = field(default_factory=CatalogueFiles)
    member: "Member | None" = None
    variants: Sequence[str] = ()

    def __post_init__(self) -> None:
        config = self.config
        ProcessCollector(registry=self.registry)
        self.shown = self.registry
        self.metrics = RequestMetrics(self.registry)
        self.rpcs = RpcMetrics(self.registry)
        self.calls = MetricsInterceptor(self.rpcs)
        self.histories = self._histories()
        self.traces = self._traces()
        self.lines = AccessLog(self.rpcs.unwritten) if config.access_log else None
        about_items = CatalogueMetrics(self.registry)
        catalogue = CatalogueFollower(self.files, about_items, config.cold_items)
        takedown = Takedown(self.files.takedown, about_items)
        kept = ServedMetrics(self.registry)
        self.served = ServedLists(config.served, kept)
        self.writer = ServedWriter(self.store, config.served, self.served, kept)
        self.health = health.aio.HealthServicer()
        self._ill = ""
        self._where = f"gRPC on {in_url(config.host)}:{config.port}"
        self.retriever = Retriever(self.histories, config.threads, takedown.keys, config.rescored_candidates)
        self.batcher: Batcher[Task, Answer] = Batcher(
            self.retriever,
            self.metrics,
            max_batch=config.max_batch_queries,
            max_cost=config.max_batch_cost,
            limit=config.queue_queries,
            retry_after=config.retry_after_seconds,
        )
        self.watcher = self._bundles(catalogue)
        self.native = self._native()
        self.followers = Followers(
            config.poll_seconds,
            self.histories,
            self.watcher,
            catalogue,
            takedown,
            self._announce,
            pushed=self.member is not None,
        )

    def _bundles(self, catalogue: CatalogueFollower) -> Bundles:
        """Return the holder of the bundles: the link to the parent, a watcher, or a router of variants."""
        if self.member is not None:
            self.member.describe = catalogue.describe
            return self.member
        between, describe = self.batcher.between, catalogue.describe
        return bundles_of(self.store, self.config, self.registry, self.variants, between=between, describe=describe)

    def _native(self) -> NativeFront | None:
        """Create the compiled front, and add its counts to the shown metrics; None if the settings name no front."""
        if self.config.front == "python":
            return None
        package = compiled()
        retriever = PlainRetriever(self.retriever, package)
        answering = Answering(
            lambda: self.watcher.loaded, retriever, self.served, self.metrics, self.config.limits.max_answer_bytes
        )
        is_asked_who = self.config.auth.jwks is not None or self.config.tls.client_ca_file is not None
        is_each_seen = is_asked_who or self.traces is not None or self.lines is not None
        native = NativeFront(package, self.config, self.batcher, answering, answers=not (is_each_seen or self.variants))
        self.shown = shown_together(self.registry, native.counts)
        if self.member is not None:
            self.member.link.registry = self.shown
        return native

    def _histories(self) -> "FollowedHistories | SharedHistories":
        config, metrics = self.config, HistoryMetrics(self.registry)
        if config.histories == "files":
            return FollowedHistories(self.store, metrics, config.cache)
        from weir.serving.histories.redis_reader import SharedHistories  # noqa: PLC0415 - the client of Redis is an extra

        return SharedHistories(self.store, metrics, config.histories, config.histories_timeout_seconds)

    def _traces(self) -> "Traces | None":
        if self.config.tracing.endpoint is None:
            return None
        from weir.serving.rpc.tracing import Traces  # noqa: PLC0415 - OpenTelemetry is an extra

        return Traces(self.config.tracing)

    async def run(self) -> None:
        """Listen, follow the store, and shut down in order on a signal."""
        # Ctrl-C reaches all processes of a terminal; a member is stopped by its parent.
        stopped = stop_signal(signal.SIGTERM) if self.member else stop_signal()
        await self._healthy(_STATUS.NOT_SERVING)
        await self.health.set(LIVENESS, _STATUS.SERVING)
        # Metrics first: a failure here takes one line, but a gRPC server dropped before its loop ends logs much more.
        with self._shown() as metrics:
            watching = [asyncio.create_task(self._watch_over())]
            if self.native is not None:
                watching.append(asyncio.create_task(self.native.follow_certificate()))
            try:
                if self.member is not None:
                    self.followers.start()
                    await first_of(stopped.wait(), self.member.may_listen())
                if not stopped.is_set():
                    async with open_to_probes(self.config, self.health) as probes:
                        await self._answer(stopped, f"{probes}metrics on {metrics}")
            finally:
                await all_ended([*watching, *self.followers.tasks])
                await asyncio.to_thread(self.batcher.close)
                await asyncio.to_thread(self.writer.close)
                if self.traces is not None:
                    await asyncio.to_thread(self.traces.close)
                if self.lines is not None:
                    await asyncio.to_thread(self.lines.close)
        log.info("stopped")

    def _shown(self) -> AbstractContextManager[str]:
        """Context manager: serve the metrics and yield their address; a member's metrics are shown by its parent."""
        if self.member is not None:
            return nullcontext("the port of the parent")
        return exposed(self.shown, self.config.metrics_host, self.config.metrics_port)

    async def _answer(self, stopped: asyncio.Event, others: str) -> None:
        """Listen until `stopped` is set, then drain; `others` are further addresses for the log."""
        fronts = self._fronts()
        port, http = await fronts.start()
        self._where = f"gRPC on {in_url(self.config.host)}:{port}, {http}{others}"
        if self.watcher.bundle is None:
            log.info("listening, without a bundle yet: %s", self._where)
        if self.member is None:
            self.followers.start()
        else:
            self.member.listens()
        self.writer.start()
        await stopped.wait()
        log.info("draining")
        await self.health.enter_graceful_shutdown()
        await asyncio.sleep(self.config.drain_seconds)
        await fronts.stop()

    def _fronts(self) -> Transports:
        watcher = self.watcher
        choose = watcher.choose if isinstance(watcher, VariantRouter) else only
        return Transports.of(
            self.config,
            CallHandlers(self.batcher, watcher, choose, self.served, self.health, self.native),
            CallObservers(self.calls, self.metrics, self.rpcs, self.traces, self.lines),
        )

    async def _watch_over(self) -> None:
        """Update the health of the process every second; runs until cancelled."""
        while True:
            if self.member is not None:
                self.member.link.beat()
            await self.look_after()
            await asyncio.sleep(1)

    async def look_after(self) -> None:
        """Set the health services of process and histories; log each change of health with its reason."""
        stuck = self.batcher.problem(self.config.max_batch_seconds)
        ill = "; ".join([*([stuck] if stuck else []), *self.followers.ended()])
        if bool(ill) != bool(self._ill):
            log.log(logging.ERROR if ill else logging.INFO, "liveness: %s", ill or "well again")
            if ill and self.member is not None:
                # Only a restart helps, and the parent starts another; the hanging thread would keep this process alive.
                os._exit(1)
            await self.health.set(LIVENESS, _STATUS.NOT_SERVING if ill else _STATUS.SERVING)
        self._ill = ill
        if not isinstance(self.histories, FollowedHistories):
            await self.health.set(HISTORIES, _STATUS.NOT_SERVING if self.histories.problem else _STATUS.SERVING)

    async def _announce(self, ready: bool) -> None:
        if ready:
            # Objects that exist now stay: repeated garbage collection of them would only delay calls.
            gc.collect()
            gc.freeze()
        if self.native is not None:
            self.native.follow(self.watcher.bundle)
        await self._healthy(_STATUS.SERVING if ready else _STATUS.NOT_SERVING)
        log.info("ready: %s" if ready else "not ready, there is no bundle to serve: %s", self._where)

    async def _healthy(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            await self.health.set(service, status)
