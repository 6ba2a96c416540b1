"""The gRPC ports of a server: the service, and health checks on a separate plain-text port."""

import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc

from weir.runtime.listening import CannotListenError, in_url, is_loopback, listening_at
from weir.serving.access.certificates import grpc_credentials
from weir.serving.config import ServingConfig

__all__ = ["HANDSHAKE_SECONDS", "listen", "open_to_probes", "rpc_server", "warn_of_plain_tokens"]

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10
"""Seconds within which a connection must start HTTP/2."""

_BOUNDED: Final = (
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
    ("grpc.max_receive_message_length", 4096),
)
"""gRPC options of the health port, which limit all probes together."""

_ANSWERS_ALL: Final = (("grpc.http.overload_protection", 0),)
"""gRPC options for a server with a rate limit per caller.

Without them, gRPC resets streams of a burst while earlier streams are being removed. Streams that callers reset stay
bounded by the streams per connection and by the calls that no handler has taken yet.
"""


def rpc_server(config: ServingConfig, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    """Return a gRPC server without services, with the settings' limits on connections and streams.

    Behind a native front, which limits connections itself, the server has a single connection.
    """
    bounds = [
        ("grpc.max_connection_age_ms", round(1000 * config.max_connection_age_seconds)),
        ("grpc.max_connection_idle_ms", round(1000 * config.max_connection_idle_seconds)),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        ("grpc.max_concurrent_streams", config.max_streams_per_connection),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        _sharing(config),
    ]
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            *(bounds if config.front == "python" else []),
            *(_ANSWERS_ALL if config.auth.calls_per_second is not None else []),
            ("grpc.max_receive_message_length", config.max_request_bytes),
            # Calls that no handler has taken yet: gRPC refuses further ones itself, at less than half of Python's
            # cost, and drops those whose deadline has passed.
            ("grpc.server.max_pending_requests", config.unread_calls),
            ("grpc.server.max_pending_requests_hard_limit", config.unread_calls),
        ],
    )


def listen(server: grpc.aio.Server, config: ServingConfig) -> int:
    """Open the gRPC port, with TLS if the settings name a certificate, and return it; raises `CannotListenError`."""
    if config.tls.certificate_file is None:
        warn_of_plain_tokens(config)
        return _listen("gRPC", config, config.port, server.add_insecure_port)
    credentials = grpc_credentials(config.tls)
    return _listen("gRPC", config, config.port, lambda where: server.add_secure_port(where, credentials))


def _listen(what: str, config: ServingConfig, port: int, add: Callable[[str], int]) -> int:
    """Bind a port on all addresses of the host, and return it; raises `CannotListenError`.

    `add` binds an address, and `what` names the listener. gRPC alone would bind only some addresses without an error.
    """
    addresses, port = listening_at(what, config.host, port, shared=config.processes > 1)
    for address in addresses:
        try:
            port = add(f"{in_url(address)}:{port}")
        except RuntimeError as error:
            # The port was free a moment ago: another server has taken it.
            taken = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            raise CannotListenError.of(taken, what, config.host, port) from error
    return port


def warn_of_plain_tokens(config: ServingConfig) -> None:
    """Log a warning if callers send tokens over a network without TLS."""
    if config.auth.jwks is not None and config.tls.certificate_file is None and not is_loopback(config.host):
        where = f"{in_url(config.host)}:{config.port}"
        log.warning("tokens travel in plain text to %s: set serving.tls, or keep the port to a mesh", where)


@asynccontextmanager
async def open_to_probes(config: ServingConfig, service: health.aio.HealthServicer) -> AsyncIterator[str]:
    """Context manager: serve only health checks on the plain-text `health_port`; yields its address for the log."""
    if config.health_port is None:
        yield ""
        return
    server = grpc.aio.server(options=[_sharing(config), *_BOUNDED])
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    try:
        port = _listen("health", config, config.health_port, server.add_insecure_port)
        await server.start()
        yield f"health on {in_url(config.host)}:{port}, "
    finally:
        await server.stop(None)


def _sharing(config: ServingConfig) -> tuple[str, int]:
    """Return the gRPC option for sharing the port, set only if this server has several processes."""
    return "grpc.so_reuseport", int(config.processes > 1)
