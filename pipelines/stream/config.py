"""The settings of a stream: where Flink is, and how much it takes at once."""

from typing import Annotated

from pydantic import Field, StringConstraints

from weir.contracts.base.models import FrozenModel

__all__ = ["StreamConfig"]

Address = Annotated[str, StringConstraints(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$")]


class StreamConfig(FrozenModel):
    """How `weir stream` runs the pipeline under Flink; what it computes is in the section `pipeline`."""

    job_endpoint: Address = Field(default="127.0.0.1:8099", description="Beam's job server, host:port")
    artifact_endpoint: Address = Field(default="127.0.0.1:8098", description="its artifact service, host:port")
    worker_pool: Address = Field(
        default="127.0.0.1:50000",
        description="the pool of Python workers as each TaskManager reaches it, host:port",
    )
    flink_rest: str = Field(
        default="http://127.0.0.1:8081", pattern=r"^https?://[^\s]+$", description="the JobManager's REST API"
    )
    parallelism: int = Field(default=2, ge=1, le=4096, description="tasks side by side; no more than partitions read")
    checkpoint_seconds: float = Field(
        default=3.0,
        ge=0.1,
        description="seconds between checkpoints; after a failure so much is read again, and none of it is lost",
    )
    batch_messages: int = Field(default=8192, ge=1, le=1_000_000, description="most messages of an element")
    bundle_batches: int = Field(default=64, ge=1, description="most elements of a bundle")
    bundle_seconds: float = Field(default=0.2, gt=0, le=10, description="longest time of a bundle, seconds")
    poll_seconds: float = Field(
        default=0.2, gt=0, le=10, description="seconds after which a partition without messages is asked again"
    )
    watch_seconds: float = Field(
        default=2.0, gt=0, description="seconds between looks at the job, the topic and the commits"
    )
    options: tuple[str, ...] = Field(default=(), description="additional Beam options, such as --state_backend=rocksdb")
