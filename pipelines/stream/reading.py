"""What a reader has to know about its partition."""

from typing import Final

from weir.contracts import EventClock
from weir.contracts.models import FrozenModel
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.client import KafkaPartition

__all__ = ["PARTITION", "UNANSWERED", "WATERMARK", "Reading"]

PARTITION: Final = "partition_"
"""What the names of the gauges of Beam start with that readers show; the number of the partition ends them."""
WATERMARK: Final = "watermark_ms_"
"""The watermark of the partition."""
UNANSWERED: Final = "unanswered_ms_"
"""Since when its reader has had no answer of the brokers, Unix time; 0 while it has."""


class Reading(FrozenModel):
    """What to read of a partition: from offset `start` on, where its watermark is `watermark_ms` (event time).

    `job` names the job among all that read for the store, `clock` is the one of the store, `batch_messages` the most
    that is read at once.
    """

    job: str
    partition: KafkaPartition
    start: int
    watermark_ms: int
    config: PipelineConfig
    clock: EventClock
    batch_messages: int
