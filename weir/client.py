"""The client of the retrieval server, under a stable name, as its module in `weir.serving` may move.

The client needs only the extra `client`, and loads no other part of weir.
"""

from weir.serving.access_config import ClientConfig
from weir.serving.aio import AsyncRetrievalClient
from weir.serving.client import (
    Hits,
    Info,
    Retrieval,
    RetrievalClient,
    RetrievalError,
    by_embedding,
    by_history,
    by_item,
    by_user,
)

__all__ = [
    "AsyncRetrievalClient",
    "ClientConfig",
    "Hits",
    "Info",
    "Retrieval",
    "RetrievalClient",
    "RetrievalError",
    "by_embedding",
    "by_history",
    "by_item",
    "by_user",
]
