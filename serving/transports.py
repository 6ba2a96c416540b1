"""The gRPC and HTTP front ends of a server, with their interceptors: admission, access, decoding, metrics."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from weir.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from weir.serving.access.access import Access
from weir.serving.access.interceptor import AccessInterceptor, RequestRightsInterceptor, keep_headers_out_of_logs
from weir.serving.batching.batcher import Batcher
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.followers import Bundles
from weir.serving.config import ServingConfig
from weir.serving.http.gateway import Gateway
from weir.serving.listeners import listen, rpc_server
from weir.serving.metrics import RequestMetrics, RpcMetrics
from weir.serving.native.front import NativeFront
from weir.serving.process_setup import leave_out_departed
from weir.serving.rpc.admission import Admission, AdmissionInterceptor
from weir.serving.rpc.decoding import DecodingInterceptor, OffloadExecutor
from weir.serving.rpc.instrumentation import AccessLog, AroundInterceptor, MetricsInterceptor
from weir.serving.rpc.reflection import enable_reflection
from weir.serving.rpc.service import RetrievalService
from weir.serving.search.queries import Answer, Task
from weir.serving.served_lists import ServedLists
from weir.serving.variants import Request

if TYPE_CHECKING:
    from weir.serving.rpc.tracing import Traces

__all__ = ["SERVICE", "CallHandlers", "CallObservers", "Transports"]

SERVICE: Final = retrieval_pb2.DESCRIPTOR.services_by_name["RetrievalService"].full_name

_LOOK_SECONDS: Final = 0.1
_QUIET_LOOKS: Final = 10
"""Successive checks without a call in progress after which a stopping server closes its connections."""


@dataclass(frozen=True)
class CallHandlers:
    """The parts of the server that the front ends call.

    `choose` picks the bundle that answers a request, given the champion's.
    """

    batcher: Batcher[Task, Answer]
    bundles: Bundles
    choose: Callable[[Request, LoadedBundle], LoadedBundle]
    served: ServedLists
    health: health.aio.HealthServicer
    native: NativeFront | None = None


@dataclass(frozen=True)
class CallObservers:
    """The observers of each call: metrics, and optionally `traces` and the access log (`lines`)."""

    calls: MetricsInterceptor
    metrics: RequestMetrics
    rpcs: RpcMetrics
    traces: "Traces | None"
    lines: AccessLog | None


@dataclass(frozen=True)
class Transports:
    """The gRPC server, the HTTP gateway and the native front, started and stopped together."""

    config: ServingConfig
    server: grpc.aio.Server
    gateway: Gateway
    calls: MetricsInterceptor
    native: NativeFront | None = None

    @classmethod
    def of(cls, config: ServingConfig, behind: CallHandlers, around: CallObservers) -> "Transports":
        """Build the front ends; nothing listens yet."""
        leave_out_departed()
        keep_headers_out_of_logs()
        aside = OffloadExecutor(config.retry_after_seconds)
        admission = Admission(config.most_calls, config.retry_after_seconds)
        service = RetrievalService(
            lambda: behind.bundles.loaded,
            behind.batcher,
            config,
            around.metrics,
            aside,
            served=behind.served,
            admission=admission,
            promoted=lambda: behind.bundles.promoted,
            choose=behind.choose,
        )
        access = Access(config.auth, certificates=config.tls.client_ca_file is not None)
        # After admission, which decides per call: these wrap each method's handler once.
        wrapped = [] if around.traces is None else [around.traces.traced]
        wrapped += [] if around.lines is None else [around.lines.logged]
        first = [
            AdmissionInterceptor(admission, around.metrics, around.rpcs),
            *map(AroundInterceptor, wrapped),
            around.calls,
        ]
        server = rpc_server(config, [*first, *_deciding(config, access, service, aside)])
        retrieval_pb2_grpc.add_RetrievalServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(behind.health, server)
        if config.reflection:
            enable_reflection((SERVICE, health.SERVICE_NAME), server)
        gateway = Gateway(
            service,
            lambda: _dimension(behind.bundles.bundle),
            around.calls,
            aside,
            access,
            admission=admission,
            config=config,
            around=wrapped,
        )
        return cls(config, server, gateway, around.calls, behind.native)

    async def start(self) -> tuple[int, str]:
        """Listen; return the gRPC port, and the HTTP address for the log. Raises `CannotListenError`."""
        if self.native is None:
            port = listen(self.server, self.config)
        else:
            self.server.add_insecure_port(f"unix:{self.native.upstream}")
        http = await self.gateway.start()
        await self.server.start()
        return port if self.native is None else self.native.start(), http

    async def stop(self) -> None:
        """Accept no new calls, and close once no call is in progress, after `grace_seconds` at the latest."""
        await asyncio.gather(self._stop_rpc(), self.gateway.stop())

    async def _stop_rpc(self) -> None:
        """Wait for the gRPC calls in progress, then close the connections.

        gRPC sometimes accepts a call at this moment and never hands it to a handler. The close cancels such a call, so
        that its client retries at another server instead of waiting for the whole grace period.
        """
        stopping, quiet = asyncio.create_task(self._grace()), 0
        while quiet < _QUIET_LOOKS and not (await asyncio.wait([stopping], timeout=_LOOK_SECONDS))[0]:
            quiet = 0 if self._under_way else quiet + 1
        await self.server.stop(None)
        if self.native is not None:
            await self.native.close()
            stopping.cancel()
        await asyncio.wait([stopping])

    async def _grace(self) -> None:
        """Accept no new connections, and wait up to `grace_seconds` for the calls in progress."""
        if self.native is None:
            await self.server.stop(self.config.grace_seconds)
        else:  # calls that it has accepted are still passed on to the Python server, which must accept them
            self.native.stop()
            await asyncio.sleep(self.config.grace_seconds)

    @property
    def _under_way(self) -> int:
        return self.calls.under_way + (0 if self.native is None else self.native.under_way)


def _deciding(
    config: ServingConfig, access: Access, service: RetrievalService, aside: OffloadExecutor
) -> list[grpc.aio.ServerInterceptor]:
    """Return the interceptors that may refuse a call after admission: access checks and decoding."""
    decoding = DecodingInterceptor(service.refuse, aside, config.limits.fields)
    if not access.asks:
        return [decoding]
    return [
        AccessInterceptor(access, service.refuse, has_front=config.front == "native"),
        decoding,
        RequestRightsInterceptor(service.refuse),
    ]


def _dimension(bundle: LoadedBundle | None) -> int:
    return 0 if bundle is None else bundle.manifest.dimension
