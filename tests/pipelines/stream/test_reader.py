""""""

import pickle

from apache_beam import coders
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import EventClock
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.kafka.client import KafkaPartition
from weir.pipelines.stream.reader import Mark, MarkCoder, PartitionSource, Reading

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, INT64)
def test_a_mark_survives_its_coder(start: int, watermark_ms: int) -> None:
    encoded = MarkCoder().encode(Mark(start, watermark_ms))
    assert encoded == start.to_bytes(8, "big", signed=True) + watermark_ms.to_bytes(8, "big", signed=True)
    assert MarkCoder().decode(encoded) == Mark(start, watermark_ms)


CONFIGS = st.sampled_from(
    [
        {},
        {"kafka": {"start": "2026-03-01T00:00:00Z", "options": {"fetch.min.bytes": 3, "client.rack": "a"}}},
        {"event_types": {"play": "positive", "skip": "negative"}, "item_features": {"dense": ["price"]}},
        {"user_features": {"categorical": ["lives"], "dense": ["age"]}},
        {"sketch": {"kind": "exact"}, "retention_days": 12.5, "min_time": "2001-01-01"},
    ]
)


@given(CONFIGS, st.integers(0), st.integers(0), st.floats(0.1, 10))
def test_a_source_is_the_same_bytes_wherever_it_has_been(
    settings: dict[str, object], start: int, watermark_ms: int, speed: float
) -> None:
    reading = Reading(
        job="j",
        partition=KafkaPartition("kafka/c/topic/id/3", "topic", 3, 0, 9, "id"),
        start=start,
        watermark_ms=watermark_ms,
        config=PipelineConfig.model_validate(settings),
        clock=EventClock(speed=speed),
        batch_messages=100,
    )
    source = PartitionSource(reading)
    once = pickle.loads(pickle.dumps(source))  # noqa: S301 - its own
    assert once.reading == reading
    assert pickle.dumps(once) == pickle.dumps(source)
    coder = coders.registry.get_coder(PartitionSource)
    assert coder.encode(coder.decode(coder.encode(source))) == coder.encode(source)
