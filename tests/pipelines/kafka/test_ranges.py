from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import SourceSpan
from weir.pipelines.kafka.client import KafkaPartition
from weir.pipelines.kafka.ranges import plan_ranges
from weir.pipelines.plan import Seen


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
