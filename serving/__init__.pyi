from .access_config import ClientConfig
from .aio import AsyncRetrievalClient
from .client import Hits, Info, Retrieval, RetrievalClient, RetrievalError, by_embedding, by_history, by_item, by_user
from .config import LimitsConfig, ServingConfig
from .server import serve

__all__ = [
    "AsyncRetrievalClient",
    "ClientConfig",
    "Hits",
    "Info",
    "LimitsConfig",
    "Retrieval",
    "RetrievalClient",
    "RetrievalError",
    "ServingConfig",
    "by_embedding",
    "by_history",
    "by_item",
    "by_user",
    "serve",
]
