"""Serves a stage's metrics at ``/metrics`` over HTTP, with limits on the time and the number of connections.

A scrape by Prometheus takes milliseconds. A connection that takes seconds is closed, and beyond the limit the newest
connection replaces the oldest: slow or idle clients cost a few threads for a few seconds and never block Prometheus.
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

from weir.runtime.listening import in_url, listening

__all__ = ["exposed"]

CONNECTION_SECONDS: Final = 5.0
"""Seconds after which a connection is cut off."""

CONNECTIONS: Final = 32
"""Most open connections; a further connection displaces the oldest."""

_POLL_SECONDS: Final = 0.2

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def exposed(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Context manager: serve the metrics of `registry`; yields and logs the address as ``port 9103 of 127.0.0.1``.

    `host` is a name or an address, IPv4 or IPv6; port 0 takes a free one. Raises `CannotListenError`.
    """
    app = make_wsgi_app(registry)
    servers = [_Server(listener, app) for listener in listening("metrics", host, port)]
    threads = [
        threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="weir-metrics", daemon=True)
        for server in servers
    ]
    for thread in threads:
        thread.start()
    where = f"port {servers[0].server_port} of {in_url(host)}"
    logger.info("metrics on %s", where)
    try:
        yield where
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing, as there is a request every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    """HTTP server on a listening socket, with a thread for each connection and a limit on its time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, app: Any) -> None:
        self._started: dict[Any, float] = {}
        self._changing = threading.Lock()
        self.address_family = listener.family
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(app)

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
        """Close connections that have lasted too long; called by `serve_forever` at every poll."""
        ends = time.monotonic() - CONNECTION_SECONDS
        with self._changing:
            late = [request for request, started in self._started.items() if started < ends]
        self._cut(late)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        logger.debug("metrics connection from %s ended early", client_address, exc_info=True)

    @staticmethod
    def _cut(requests: list[Any]) -> None:
        """Shut connections down, so that their threads wake up and close the sockets."""
        for request in requests:
            with contextlib.suppress(OSError):  # it has ended in the meantime
                request.shutdown(socket.SHUT_RDWR)
