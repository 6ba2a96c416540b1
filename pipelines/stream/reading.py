"""What a reader has to know about its partition."""

from typing import Final

from weir.contracts import EventClock
from weir.contracts.models import FrozenModel
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka.client import KafkaPartition

__all__ = ["WATERMARK", "Reading"]

WATERMARK: Final = "partition_watermark_ms_"
"""The gauges of Beam with the watermark of each partition; its number follows."""


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
