"""What callers reach of a server: gRPC and HTTP, and on the way to the service what decides on each call."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from weir.retrieval.v1 import retrieval_pb2, retrieval_pb2_grpc
from weir.serving.access.access import Access
from weir.serving.access.interceptor import AccessInterceptor, RequestRightsInterceptor, keep_headers_out_of_logs
from weir.serving.access_log import AccessLog
from weir.serving.admission import Admission, AdmissionInterceptor
from weir.serving.aside import Aside
from weir.serving.batcher import Batcher
from weir.serving.bundle import LoadedBundle
from weir.serving.config import ServingConfig
from weir.serving.decoding import DecodingInterceptor
from weir.serving.followers import Bundles
from weir.serving.http.gateway import Gateway
from weir.serving.interceptor import MetricsInterceptor
from weir.serving.listeners import listen, rpc_server
from weir.serving.metrics import RequestMetrics, RpcMetrics
from weir.serving.native.front import NativeFront
from weir.serving.queries import Answer, Task
from weir.serving.quiet import leave_out_departed
from weir.serving.reflection import enable_reflection
from weir.serving.served.lists import ServedLists
from weir.serving.service import RetrievalService
from weir.serving.variants.split import Request
from weir.serving.wrapping import AroundInterceptor

if TYPE_CHECKING:
    from weir.serving.tracing import Traces

__all__ = ["SERVICE", "Around", "Behind", "Fronts"]

SERVICE: Final = retrieval_pb2.DESCRIPTOR.services_by_name["RetrievalService"].full_name

_LOOK_SECONDS: Final = 0.1
_QUIET_LOOKS: Final = 10
"""A stopping server ends after so many checks in a row without a call in progress."""


@dataclass(frozen=True)
class Behind:
    """What answers: the batcher, the bundles and which of them, where lists are kept, health, and a native front."""

    batcher: Batcher[Task, Answer]
    bundles: Bundles
    choose: Callable[[Request, LoadedBundle], LoadedBundle]
    served: ServedLists
    health: health.aio.HealthServicer
    native: NativeFront | None = None


@dataclass(frozen=True)
class Around:
    """What sees each call: metrics, and where they are asked for traces and the access log."""

    calls: MetricsInterceptor
    metrics: RequestMetrics
    rpcs: RpcMetrics
    traces: "Traces | None"
    lines: AccessLog | None


@dataclass(frozen=True)
class Fronts:
    """Started and stopped together."""

    config: ServingConfig
    server: grpc.aio.Server
    gateway: Gateway
    calls: MetricsInterceptor
    native: NativeFront | None = None

    @classmethod
    def of(cls, config: ServingConfig, behind: Behind, around: Around) -> "Fronts":
        """Put them together; nothing listens yet."""
        leave_out_departed()
        keep_headers_out_of_logs()
        aside = Aside(config.retry_after_seconds)
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
        # Behind admission, which decides on every call: these make the handler of a method once.
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
        """Listen; return the port of gRPC, and what the log says of HTTP."""
        if self.native is None:
            port = listen(self.server, self.config)
        else:
            self.server.add_insecure_port(f"unix:{self.native.upstream}")
        http = await self.gateway.start()
        await self.server.start()
        return port if self.native is None else self.native.start(), http

    async def stop(self) -> None:
        """Take no further call, and end as soon as none is in progress, after `grace_seconds` at the latest."""
        await asyncio.gather(self._stop_rpc(), self.gateway.stop())

    async def _stop_rpc(self) -> None:
        """Wait for the calls in progress, and end the connections as soon as there are none.

        gRPC sometimes accepts a call at this moment and never hands it to a handler. It would hang for the whole grace;
        cancelled, its client asks another server.
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
        """Take no further connection, and give the calls in progress their time."""
        if self.native is None:
            await self.server.stop(self.config.grace_seconds)
        else:  # what it has taken goes on to Python's server, which has to take it
            self.native.stop()
            await asyncio.sleep(self.config.grace_seconds)

    @property
    def _under_way(self) -> int:
        return self.calls.under_way + (0 if self.native is None else self.native.under_way)


def _deciding(
    config: ServingConfig, access: Access, service: RetrievalService, aside: Aside
) -> list[grpc.aio.ServerInterceptor]:
    """Return what decides on a call before the service: whether its bytes are a request, and who may send it."""
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
