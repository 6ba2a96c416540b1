"""Ranges of offsets of a real topic as blocks of rows, and a topic copied to files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.kafka_broker import Broker
from tests.pipelines.sources.kafka.support import config, new_topic, values
from weir.contracts import SourceSpan
from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.kafka_config import BrokerAwayError, TopicMissingError
from weir.pipelines.sources.kafka.client import KafkaPartition
from weir.pipelines.sources.kafka.consume import CopiedTopic, copy_topic, plan_ranges
from weir.pipelines.sources.plan import Seen
from weir.readers import LogConfig, discover, read_log


def copied(folder: Path) -> dict[str, list[bytes]]:
    return {path.name: path.read_bytes().splitlines() for path in sorted(folder.iterdir())}


def test_each_partition_is_a_file_of_its_messages_in_order(tmp_path: Path, broker: Broker) -> None:
    topic, seen = new_topic(broker, 3), []
    first, second = values(range(120), "a"), values(range(70), "b")
    broker.send(topic, first, 0)
    broker.send(topic, [*second[:5], None, b"  ", *second[5:]], 2)
    found = copy_topic(config(tmp_path, broker, topic), tmp_path, show=lambda done, total: seen.append((done, total)))
    assert found == CopiedTopic(190, is_whole=True)
    assert copied(tmp_path) == {"0.jsonl": first, "2.jsonl": second}
    assert seen == sorted(seen)
    assert seen[-1] == (192, 192)


def test_a_message_is_a_line_whatever_it_holds(tmp_path: Path, broker: Broker) -> None:
    topic, [one] = new_topic(broker), values(range(1))
    assert one is not None
    broker.send(topic, [one.replace(b",", b",\r\n"), b"not\njson"])
    copy_topic(config(tmp_path, broker, topic), tmp_path)
    read = list(read_log(discover(str(tmp_path)), LogConfig()))
    assert sum(len(block.rows) for block, _ in read) == 1
    assert [letter.position for _, dead in read for letter in dead.letters] == [len(one.replace(b",", b",\r\n")) + 1]


def test_protobuf_is_spelled_as_json_and_what_is_none_stays_a_dead_letter(tmp_path: Path, broker: Broker) -> None:
    topic = new_topic(broker)
    broker.send(topic, [Interaction(user_id="u", item_id="i", timestamp_ms=5).SerializeToString(), b"\xff"])
    copy_topic(config(tmp_path, broker, topic, kafka={"format": "protobuf"}), tmp_path)
    assert copied(tmp_path) == {"0.jsonl": [b'{"user_id":"u","item_id":"i","timestamp":5}', b"\xff"]}


def test_only_the_newest_are_copied_where_that_is_enough(tmp_path: Path, broker: Broker) -> None:
    topic, sent = new_topic(broker, 2), values(range(100))
    broker.send(topic, sent, 0)
    broker.send(topic, sent[:3], 1)
    assert copy_topic(config(tmp_path, broker, topic), tmp_path, newest=20) == CopiedTopic(13, is_whole=False)
    assert copied(tmp_path) == {"0.jsonl": sent[-10:], "1.jsonl": sent[:3]}


def test_a_topic_that_changes_meanwhile_is_no_log(tmp_path: Path, broker: Broker) -> None:
    """What was read may be of another topic: half of each would look like a log."""
    topic = new_topic(broker)
    broker.send(topic, values(range(120)))

    def create_again(done: int, _total: int) -> None:
        if done == 50:
            broker.delete(topic)
            broker.create(topic, partitions=1)

    with pytest.raises(BrokerAwayError, match=f"partition 0 of topic {topic} was read to offset 50 of 120"):
        copy_topic(config(tmp_path, broker, topic), tmp_path, show=create_again)


def test_a_topic_that_nobody_has_is_named(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(TopicMissingError, match="the brokers know no topic nobody"):
        copy_topic(config(tmp_path, broker, "nobody"), tmp_path)
    settings = config(tmp_path, broker, "any", kafka={"timeout_seconds": 0.3})
    with pytest.raises(BrokerAwayError, match=r"kafka://127\.0\.0\.1:1/any"):
        copy_topic(settings.model_copy(update={"log": "kafka://127.0.0.1:1/any"}), tmp_path)


def partition(number: int, first: int, size: int) -> KafkaPartition:
    return KafkaPartition(f"kafka/c/t/id/{number}", "t", number, first, size)


@st.composite
def listings(draw: st.DrawFn) -> list[tuple[KafkaPartition, SourceSpan | None, int | None]]:
    """Partitions, each with what commits and this process know of it."""
    found = []
    for number in range(draw(st.integers(0, 5))):
        first, resume, stop, reached, size = sorted(draw(st.lists(st.integers(0, 10_000), min_size=5, max_size=5)))
        span = SourceSpan(start=first, stop=stop, resume=resume, size=stop) if draw(st.booleans()) else None
        found.append((partition(number, first, size), span, reached if draw(st.booleans()) else None))
    return found


@given(listings(), st.integers(1, 1 << 30))
def test_each_partition_is_read_from_where_it_was_left_and_gets_its_share(
    listing: list[tuple[KafkaPartition, SourceSpan | None, int | None]], limit: int
) -> None:
    known = {one.key: span for one, span, _ in listing if span}
    reached = {one.key: at for one, _, at in listing if at is not None}
    planned = plan_ranges([one for one, _, _ in listing], Seen(known, reached), limit)
    ranges = {plan.partition.key: plan for plan in planned}
    expected = {}
    for one, span, at in listing:
        if span is None:
            continue
        start = span.resume if at is None else at
        if start < one.size:
            expected[one.key] = (start, one.size, max(at or 0, span.stop))
    assert {key: (plan.start, plan.stop, plan.known) for key, plan in ranges.items()} == expected
    assert sum(plan.limit for plan in ranges.values()) <= limit + len(ranges)
    unread = sum(plan.stop - plan.start for plan in ranges.values())
    for plan in ranges.values():
        assert abs(plan.limit - limit * (plan.stop - plan.start) / unread) <= 1
