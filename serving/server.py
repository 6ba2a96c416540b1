"""The server process: bundle and histories from the store, answers over gRPC and HTTP, metrics beside it.

`serve` listens, opens the histories, loads the promoted bundle, follows the store until SIGTERM, and drains. The event
loop parses and answers; one thread (`serving.batcher`) runs tower and search; others follow the store.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc.aio
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, ProcessCollector

from contracts import Store
from contracts.exposition import exposed
from serving.access.access import Access
from serving.access.certificates import grpc_credentials
from serving.access.interceptor import AccessInterceptor, RequestRightsInterceptor, keep_headers_out_of_logs
from serving.aside import Aside
from serving.batcher import Batcher
from serving.config import ServingConfig
from serving.daemon import in_daemon
from serving.decoding import DecodingInterceptor
from serving.following import LOOK_SECONDS, CatalogueFiles, CatalogueFollower, Takedown
from serving.histories import FollowedHistories
from serving.http.gateway import Gateway
from serving.http.hosts import is_loopback
from serving.in_place import DeltaPolicy
from serving.index import pick_gpu
from serving.interceptor import MetricsInterceptor
from serving.memory import Memory
from serving.metrics import BundleMetrics, CatalogueMetrics, HistoryMetrics, RequestMetrics, RpcMetrics
from serving.open_files import allow_files
from serving.problems import Problems
from serving.queries import Answer, Task
from serving.quiet import leave_out_departed
from serving.reflection import enable_reflection
from serving.retriever import Retriever
from serving.service import RetrievalService
from serving.watcher import BundleWatcher
from weir.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc

if TYPE_CHECKING:
    from serving.shared.reader import SharedHistories

__all__ = ["Server", "serve"]

log = logging.getLogger(__name__)

SERVICE = retrieval_pb2.DESCRIPTOR.services_by_name["RetrievalService"].full_name
LIVENESS = "liveness"
"""Health of the process alone: a server that waits for its first bundle is healthy and must not be restarted.

It is NOT_SERVING where only a restart helps: the thread that searches has ended or hangs, or one that follows the store
has ended.
"""

HISTORIES = "histories"
"""Health of the histories in Redis: NOT_SERVING where all users count as unknown. The server answers nevertheless."""

_HANDSHAKE_SECONDS: Final = 10
"""Time in which a connection must start HTTP/2."""

_OTHER_FILES: Final = 1024
"""Open files other than connections of clients: of histories, a handful for each user shard."""

_SWITCH_SECONDS: Final = 0.001
"""How long a thread may hold the interpreter while the event loop waits for it: five times less than usual."""

_BOUNDED: Final = (
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_SECONDS),
    ("grpc.max_receive_message_length", 4096),
)
"""What all probes together may hold open."""

_LOOK_SECONDS: Final = 0.1
_QUIET_LOOKS: Final = 10
"""A stopping server ends after so many checks in a row without a call in progress."""

_STATUS = health_pb2.HealthCheckResponse


def serve(store: Store, config: ServingConfig, files: CatalogueFiles | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return; `files` say what is known of items beside the store."""
    pick_gpu(config.device)
    allow_files(config.max_connections + _OTHER_FILES)
    sys.setswitchinterval(_SWITCH_SECONDS)
    uvloop.run(Server(store, config, files=files or CatalogueFiles()).run())


@dataclass
class Server:
    """The parts of one process; `run` starts and ends them."""

    store: Store
    config: ServingConfig
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True))
    files: CatalogueFiles = field(default_factory=CatalogueFiles)

    def __post_init__(self) -> None:
        config = self.config
        ProcessCollector(registry=self.registry)
        self.metrics = RequestMetrics(self.registry)
        self.calls = MetricsInterceptor(RpcMetrics(self.registry))
        self.histories = self._histories()
        about_items = CatalogueMetrics(self.registry)
        self.catalogue = CatalogueFollower(self.files.catalogue, about_items)
        self.takedown = Takedown(self.files.takedown, about_items)
        self.health = health.aio.HealthServicer()
        self.following: list[asyncio.Task[None]] = []
        self._looked, self._listed = asyncio.Event(), asyncio.Event()
        self._problems, self._fetch_problems = Problems(log), Problems(log)
        self._ill = ""
        self._where = ""
        self._ready = False
        self.batcher: Batcher[Task, Answer] = Batcher(
            Retriever(self.histories, config.threads, self.takedown.keys),
            self.metrics,
            max_batch=config.max_batch_queries,
            max_cost=config.max_batch_cost,
            limit=config.queue_queries,
            retry_after=config.retry_after_seconds,
        )
        self.watcher = BundleWatcher(
            self.store,
            BundleMetrics(self.registry),
            config.device,
            config.threads,
            DeltaPolicy(config.deltas, Memory.found(config.memory_bytes)),
            self.batcher.between,
            self.catalogue.describe,
        )

    def _histories(self) -> "FollowedHistories | SharedHistories":
        config, metrics = self.config, HistoryMetrics(self.registry)
        if config.histories == "files":
            return FollowedHistories(self.store, metrics, config.cache)
        from serving.shared.reader import SharedHistories  # noqa: PLC0415 - the client of Redis is an extra

        return SharedHistories(self.store, metrics, config.histories, config.histories_timeout_seconds)

    async def run(self) -> None:
        """Listen, follow the store, and shut down in order on a signal."""
        stopped = _stop_signal()
        await self._healthy(_STATUS.NOT_SERVING)
        await self.health.set(LIVENESS, _STATUS.SERVING)
        # Metrics first, which fail in one line: a gRPC server dropped before its loop ends logs much more.
        with exposed(self.registry, self.config.metrics_host, self.config.metrics_port) as metrics:
            server, gateway = self._fronts()
            port = self._listen(server)
            http = await gateway.start()
            await server.start()
            probed, probes = await self._open_to_probes()
            self._where = f"gRPC on {self.config.host}:{port}, {http}{probes}metrics on {metrics}"
            log.info("listening, without a bundle yet: %s", self._where)
            self.follow()
            watching = asyncio.create_task(self._watch_over())
            try:
                await stopped.wait()
                await self._drain(server, gateway)
                if probed is not None:
                    await probed.stop(None)
            finally:
                await _ended([watching, *self.following])
                await asyncio.to_thread(self.batcher.close)
        log.info("stopped")

    def _fronts(self) -> tuple[grpc.aio.Server, Gateway]:
        config = self.config
        leave_out_departed()
        aside = Aside(config.retry_after_seconds)
        watcher = self.watcher
        service = RetrievalService(
            lambda: watcher.bundle, self.batcher, config, self.metrics, aside, promoted=lambda: watcher.promoted
        )
        decoding = DecodingInterceptor(service.refuse, aside, config.limits.fields)
        keep_headers_out_of_logs()
        access = Access(config.auth, certificates=config.tls.client_ca_file is not None)
        interceptors: list[grpc.aio.ServerInterceptor] = [self.calls, decoding]
        if access.asks:
            interceptors = [
                self.calls,
                AccessInterceptor(access, service.refuse),
                decoding,
                RequestRightsInterceptor(service.refuse),
            ]
        server = grpc.aio.server(
            interceptors=interceptors,
            options=[
                ("grpc.max_connection_age_ms", round(1000 * config.max_connection_age_seconds)),
                ("grpc.max_connection_idle_ms", round(1000 * config.max_connection_idle_seconds)),
                ("grpc.max_allowed_incoming_connections", config.max_connections),
                ("grpc.max_concurrent_streams", config.max_streams_per_connection),
                ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_SECONDS),
                ("grpc.max_receive_message_length", config.max_request_bytes),
                ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
            ],
        )
        retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if config.reflection:
            enable_reflection((SERVICE, health.SERVICE_NAME), server)
        return server, Gateway(service, self._dimension, self.calls, aside, access, config=config)

    def _listen(self, server: grpc.aio.Server) -> int:
        config, where = self.config, f"{self.config.host}:{self.config.port}"
        if config.tls.certificate_file is not None:
            return server.add_secure_port(where, grpc_credentials(config.tls))
        if config.auth.jwks is not None and not is_loopback(config.host):
            log.warning("tokens travel in plain text to %s: set serving.tls, or keep the port to a mesh", where)
        return server.add_insecure_port(where)

    async def _open_to_probes(self) -> tuple[grpc.aio.Server | None, str]:
        """Answer health checks, and nothing else, on a plain-text port of their own."""
        if self.config.health_port is None:
            return None, ""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *_BOUNDED])
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        port = server.add_insecure_port(f"{self.config.host}:{self.config.health_port}")
        await server.start()
        return server, f"health on {self.config.host}:{port}, "

    def _dimension(self) -> int:
        return 0 if self.watcher.bundle is None else self.watcher.bundle.manifest.dimension

    def follow(self) -> None:
        """Follow histories, catalogue and bundles side by side; the first bundle waits for one look at the others."""
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "following histories": self._refresh_histories,
            "following bundles": self._refresh_bundle,
        }
        if self.files == CatalogueFiles():
            self._listed.set()
        else:
            steps["following the catalogue"] = self._refresh_catalogue
        if isinstance(self.histories, FollowedHistories):
            for size, large in (("small", False), ("large", True)):
                steps[f"fetching {size} history files"] = partial(self._fetch, self.histories, large=large)
        self.following = [
            asyncio.create_task(self._forever(step, self.config.poll_seconds), name=name)
            for name, step in steps.items()
        ]
        if self.files.takedown is not None:
            following = self._forever(self._refresh_takedown, min(self.config.poll_seconds, LOOK_SECONDS))
            self.following.append(asyncio.create_task(following, name="following the items taken down"))

    async def _forever(self, step: Callable[[], Awaitable[None]], pause: float) -> None:
        while True:
            try:
                await step()
            except Exception:
                log.exception("following the store failed, it is tried again")
            await asyncio.sleep(pause)

    async def _refresh_histories(self) -> None:
        try:
            await asyncio.to_thread(self._catch_up)
        finally:
            self._looked.set()

    async def _refresh_catalogue(self) -> None:
        """Look at the catalogue; before the first bundle also at the items taken down, which none may precede."""
        if not self._listed.is_set():
            await asyncio.to_thread(self.takedown.look)
        try:
            await asyncio.to_thread(self.catalogue.look, self.watcher.bundle)
        finally:
            self._listed.set()

    async def _refresh_takedown(self) -> None:
        await self._listed.wait()
        await asyncio.to_thread(self.takedown.look)

    async def _fetch(self, histories: FollowedHistories, *, large: bool) -> None:
        if histories.due(large=large):
            await in_daemon(partial(self._fetch_files, histories, large=large))

    async def _refresh_bundle(self) -> None:
        await self._looked.wait()
        await self._listed.wait()
        await asyncio.to_thread(self.watcher.refresh)
        ready = self.watcher.bundle is not None
        if ready != self._ready:
            self._ready = ready
            await self._healthy(_STATUS.SERVING if ready else _STATUS.NOT_SERVING)
            log.info("ready: %s" if ready else "not ready, there is no bundle to serve: %s", self._where)

    def _catch_up(self) -> None:
        try:
            self.histories.catch_up()
            self._problems.over()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.histories.metrics.errors.inc()
            self._problems.report(error, f"histories stay at window {self.histories.sequence}")

    def _fetch_files(self, histories: FollowedHistories, *, large: bool) -> None:
        try:
            histories.fetch(large=large)
            self._fetch_problems.over()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            histories.metrics.errors.inc()
            self._fetch_problems.report(error, "a file of histories could not be fetched, it is tried again")

    async def _watch_over(self) -> None:
        """Update the health of the process every second."""
        while True:
            await self.look_after()
            await asyncio.sleep(1)

    async def look_after(self) -> None:
        """Set the health of the process; the log says when it changes, and why."""
        ended = [f"{task.get_name()} has ended: {_why(task)}" for task in self.following if task.done()]
        stuck = self.batcher.problem(self.config.max_batch_seconds)
        ill = "; ".join([*([stuck] if stuck else []), *ended])
        if bool(ill) != bool(self._ill):
            log.log(logging.ERROR if ill else logging.INFO, "liveness: %s", ill or "well again")
            await self.health.set(LIVENESS, _STATUS.NOT_SERVING if ill else _STATUS.SERVING)
        self._ill = ill
        if not isinstance(self.histories, FollowedHistories):
            await self.health.set(HISTORIES, _STATUS.NOT_SERVING if self.histories.problem else _STATUS.SERVING)

    async def _healthy(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            await self.health.set(service, status)

    async def _drain(self, server: grpc.aio.Server, gateway: Gateway) -> None:
        log.info("draining")
        await self.health.enter_graceful_shutdown()
        await asyncio.sleep(self.config.drain_seconds)
        await asyncio.gather(self._stop(server), gateway.stop())

    async def _stop(self, server: grpc.aio.Server) -> None:
        """Wait for the calls in progress, and end the connections as soon as there are none.

        gRPC sometimes accepts a call at this moment and never hands it to a handler. It would hang for the whole grace;
        cancelled, its client asks another server.
        """
        stopping, quiet = asyncio.create_task(server.stop(self.config.grace_seconds)), 0
        while quiet < _QUIET_LOOKS and not (await asyncio.wait([stopping], timeout=_LOOK_SECONDS))[0]:
            quiet = 0 if self.calls.under_way else quiet + 1
        await server.stop(None)
        await stopping


def _stop_signal() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def _why(task: asyncio.Task[None]) -> str:
    return "cancelled" if task.cancelled() else repr(task.exception())


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.error("a task of the server had failed", exc_info=result)
