"""What gRPC logs about callers who have left, and nobody needs to read."""

import logging

import grpc.aio

__all__ = ["leave_out_departed"]

log = logging.getLogger(__name__)


def leave_out_departed() -> None:
    """Keep gRPC from telling, with a traceback, that it could not send to a caller who had just left.

    It is silent itself where it has noticed the leaving before the sending failed.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, grpc.aio.InternalError) or "ExecuteBatchError" not in record.getMessage():
        return True
    log.debug("a caller left while it was answered: %s", error)
    return False
