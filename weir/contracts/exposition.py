"""How every stage shows its metrics: ``/metrics`` over HTTP, bounded in time and in connections.

Prometheus scrapes now and then, in milliseconds. A connection that lasts longer is closed, and where there are too many
connections the newest replaces the oldest: slow or idle clients cost a few threads for a few seconds and never keep
Prometheus out.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

__all__ = ["exposed"]

CONNECTION_SECONDS: Final = 5.0
"""From the connection to its answer; afterwards it is cut off."""

CONNECTIONS: Final = 32
"""Served at once; one more displaces the oldest."""

_POLL_SECONDS: Final = 0.2

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def exposed(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Serve `registry` while inside; yields and logs where, ``port 9103 of 127.0.0.1``.

    `host` is a name or an address, IPv4 or IPv6; port 0 takes a free one. Raises `OSError` where it cannot listen.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = _Server(family, address)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: metrics on host {host!r}, port {port}") from error
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="weir-metrics", daemon=True)
    thread.start()
    where = f"port {server.server_port} of {host}"
    logger.info("metrics on %s", where)
    try:
        yield where
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log no requests: there is one every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per connection, each with a deadline."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, family: int, address: Any) -> None:
        self.address_family = family
        self._started: dict[Any, float] = {}
        self._changing = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._started[request] = time.monotonic()
            surplus = list(self._started)[:-CONNECTIONS]
        self._cut(surplus)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._started.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close the connections that have lasted too long; `serve_forever` calls this at every poll."""
        ends = time.monotonic() - CONNECTION_SECONDS
        with self._changing:
            late = [request for request, started in self._started.items() if started < ends]
        self._cut(late)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        logger.debug("metrics connection from %s ended early", client_address, exc_info=True)

    @staticmethod
    def _cut(requests: list[Any]) -> None:
        """Wake the threads that wait for these connections; the threads close them."""
        for request in requests:
            with contextlib.suppress(OSError):  # it has ended in the meantime
                request.shutdown(socket.SHUT_RDWR)
