"""The settings of `weir histories`."""

from pydantic import Field

from weir.contracts import LocalCache
from weir.contracts.base.models import FrozenModel
from weir.runtime.listening import Host

__all__ = ["FollowerConfig"]


class FollowerConfig(FrozenModel):
    """How `weir histories` brings the histories of a store to Redis."""

    redis: str = Field(default="redis://127.0.0.1:6379/0", description="where histories are kept; rediss:// for TLS")
    timeout_seconds: float = Field(default=10.0, gt=0, description="timeout of one command, seconds")
    poll_seconds: float = Field(default=0.3, gt=0, description="interval between checks of the store, seconds")
    lease_seconds: float = Field(
        default=15.0, gt=0, description="how long after a follower has ended another one takes its place, seconds"
    )
    block_users: int = Field(default=1000, ge=1, description="users that are written in one transaction")
    metrics_host: Host = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9105, ge=0, le=65535, description="port of /metrics; 0 takes a free one")

    @property
    def cache(self) -> LocalCache:
        """The local cache of files fetched from an object store."""
        return LocalCache()
