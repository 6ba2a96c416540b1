"""Log filter for gRPC's tracebacks about callers that have disconnected."""

import logging

import grpc.aio

__all__ = ["leave_out_departed"]

log = logging.getLogger(__name__)


def leave_out_departed() -> None:
    """Filter out gRPC's tracebacks about a failed send to a caller that has just disconnected.

    gRPC itself does not log them if it notices the disconnect before the send fails.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError) or "ExecuteBatchError" not in record.getMessage():
        return True
    log.debug("a caller left while it was answered: %s", error)
    return False
