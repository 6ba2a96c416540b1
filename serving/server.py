"""The server process: bundle and histories from the store, answers over gRPC, metrics beside it.

`serve` is the main path: catch up on histories, load the promoted bundle, listen, follow the store until SIGTERM, then
drain. The event loop parses and answers; one thread (`serving.batcher`) runs tower and search; others follow the store.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import grpc.aio
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from contracts import CorruptArtefactError, Store
from serving.batcher import Batcher
from serving.config import ServingConfig
from serving.histories import UserHistories
from serving.index import pick_gpu
from serving.interceptor import MetricsInterceptor
from serving.metrics import BundleMetrics, RequestMetrics, RpcMetrics
from serving.queries import Answer, Task
from serving.retriever import Retriever
from serving.service import RetrievalService
from serving.watcher import BundleWatcher
from weir.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc

__all__ = ["Server", "serve"]

log = logging.getLogger(__name__)

SERVICE = retrieval_pb2.DESCRIPTOR.services_by_name["RetrievalService"].full_name
LIVENESS = "liveness"
"""Health of the process alone: a server that waits for its first bundle is well and must not be restarted."""


def serve(store: Store, config: ServingConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return."""
    pick_gpu(config.device)
    uvloop.run(Server(store, config).run())


@dataclass
class Server:
    """The parts of one process; `run` owns their lives."""

    store: Store
    config: ServingConfig
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=True))

    def __post_init__(self) -> None:
        config = self.config
        ProcessCollector(registry=self.registry)
        self.metrics = RequestMetrics(self.registry)
        self.watcher = BundleWatcher(self.store, BundleMetrics(self.registry), config.device, config.threads)
        self.histories = UserHistories(self.store)
        self.health = health.aio.HealthServicer()
        self._problem = ""
        self._where = ""
        self.batcher: Batcher[Task, Answer] = Batcher(
            Retriever(self.histories, config.threads),
            self.metrics,
            max_batch=config.max_batch_queries,
            limit=config.queue_queries,
            retry_after=config.retry_after_seconds,
        )

    async def run(self) -> None:
        """Listen, follow the store, and stop in good order when told to."""
        stopped = _stop_signal()
        await self._healthy(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        # First what fails in one line: a gRPC server dropped before its loop ends complains at length.
        web, thread = start_http_server(self.config.metrics_port, registry=self.registry)
        server = self._grpc_server()
        port = server.add_insecure_port(f"{self.config.host}:{self.config.port}")
        await server.start()
        self._where = f"gRPC on {self.config.host}:{port}, metrics on port {web.server_port}"
        log.info("listening, without a bundle yet: %s", self._where)
        following = asyncio.create_task(self._follow())
        try:
            await stopped.wait()
            await self._drain(server)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await asyncio.to_thread(self.batcher.close)
            await asyncio.to_thread(web.shutdown)
            web.server_close()
            thread.join()
        log.info("stopped")

    def _grpc_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[MetricsInterceptor(RpcMetrics(self.registry))],
            options=[
                ("grpc.max_connection_age_ms", round(1000 * self.config.max_connection_age_seconds)),
                ("grpc.max_receive_message_length", self.config.max_request_bytes),
                ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
            ],
        )
        service = RetrievalService(lambda: self.watcher.bundle, self.batcher, self.config.limits, self.metrics)
        retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if self.config.reflection:
            reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _follow(self) -> None:
        """Read the histories that are there, then bundles and further windows side by side."""
        await asyncio.to_thread(self._catch_up)
        await asyncio.gather(
            self._forever(self._refresh_bundle), self._forever(partial(asyncio.to_thread, self._catch_up))
        )

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception:
                log.exception("following the store failed, it goes on")
            await asyncio.sleep(self.config.poll_seconds)

    async def _refresh_bundle(self) -> None:
        first = self.watcher.bundle is None
        if await asyncio.to_thread(self.watcher.refresh) and first:
            await self._healthy(health_pb2.HealthCheckResponse.SERVING)
            log.info("ready: %s", self._where)

    def _catch_up(self) -> None:
        try:
            self.histories.catch_up()
            self._problem = ""
        except (CorruptArtefactError, OSError) as error:
            self.metrics.history_errors.inc()
            if str(error) != self._problem:  # said once, not at every poll
                log.error("histories stay at commit %d: %s", self.histories.sequence, error)
            self._problem = str(error)
        self.metrics.users.set(self.histories.users)
        self.metrics.sequence.set(self.histories.sequence)

    async def _healthy(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", SERVICE):
            await self.health.set(service, status)

    async def _drain(self, server: grpc.aio.Server) -> None:
        log.info("draining")
        await self.health.enter_graceful_shutdown()
        await asyncio.sleep(self.config.drain_seconds)
        await server.stop(self.config.grace_seconds)


def _stop_signal() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped
