"""The client of the retrieval server, under a name that stays: `serving` has it, and may move it.

It needs the extra `client` only, and loads no other part of weir.
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
