"""Optional access log: a line of JSON per call on standard output, written in the background.

A line has the method, the caller and the outcome of a call, but no content of the request: no user, no item, no token.
"""

import json
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from typing import IO, Any, Final

from grpc_health.v1 import health
from prometheus_client import Counter

from weir.serving.ending import Ending
from weir.serving.interceptor import go_name
from weir.serving.spans import exemplar
from weir.serving.wrapping import Handler

__all__ = ["AccessLog", "note"]

_REQUEST_ID: Final = "x-request-id"
_WAITING: Final = 10_000
"""Most lines that may wait to be written."""

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)
"""Facts for the log line of the call that the current task answers; None without an access log."""


def note(**facts: Any) -> None:
    """Add facts to the log line of the current task's call, if the access log is on."""
    if (found := _facts.get()) is not None:
        found.update(facts)


class AccessLog:
    """Writes lines in a background thread; lines that standard output does not take in time count as `dropped`."""

    def __init__(self, dropped: Counter, out: IO[bytes] | None = None) -> None:
        self._dropped, self._out = dropped, out or sys.stdout.buffer
        self._queue: Queue[dict[str, Any] | None] = Queue(_WAITING)
        # A daemon thread: a reader of standard output that has stopped must not keep the server from ending.
        self._thread = Thread(target=self._write, name="access-log", daemon=True)
        self._thread.start()

    def logged(self, inner: Handler, service: str, method: str) -> Handler:
        """Return the handler with a log line per call; health checks are too frequent to be logged."""
        if service == health.SERVICE_NAME:
            return inner

        async def handle(request: Any, context: Any) -> Any:
            facts: dict[str, Any] = {"time": _now(), "method": f"{service}/{method}"}
            if request_id := dict(context.invocation_metadata() or ()).get(_REQUEST_ID):
                facts["request_id"] = request_id
            before, ending = _facts.set(facts), Ending(context)
            try:
                with ending:
                    return await inner(request, context)
            finally:
                _facts.reset(before)
                end = {"code": go_name(ending.code), "ms": round(1000 * ending.seconds, 3)}
                self._put(facts | end | (exemplar() or {}))

        return handle

    def close(self, seconds: float = 2.0) -> None:
        """Write the waiting lines, for some seconds at most."""
        try:
            self._queue.put(None, timeout=seconds)
        except Full:
            return
        self._thread.join(seconds)

    def _put(self, line: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait(line)
        except Full:
            self._dropped.inc()

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                # Headers may hold invalid Unicode; escaped, any text is JSON.
                self._out.write(json.dumps(line, default=str).encode() + b"\n")
                if self._queue.empty():
                    self._out.flush()
            except OSError:
                # The reader of standard output has closed it; another one may open it.
                self._dropped.inc()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
