"""What is reported against the watermarks that partitions of one process had, in any order of their turns."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.stream.shared_watermark import SETTLE_SECONDS, SharedWatermark

TURNS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.floats(0, 2)), min_size=1, max_size=60)


@given(TURNS)
def test_nothing_that_is_known_is_ever_behind_what_was_reported(turns: list[tuple[int, int, float]]) -> None:
    clock = [100.0]
    shared = SharedWatermark(lambda: clock[0])
    watermarks: dict[int, int] = {}
    newest = 0.0
    for partition, rise, pause in turns:
        clock[0] += pause
        if partition not in watermarks:
            newest = clock[0]
        watermarks[partition] = watermarks.get(partition, 0) + rise
        reported = shared.rise(partition, watermarks[partition])
        expected = min(watermarks.values()) if clock[0] >= newest + SETTLE_SECONDS else None
        assert reported == expected


def test_a_partition_that_ends_or_moves_away_holds_nothing() -> None:
    clock = [0.0]
    shared = SharedWatermark(lambda: clock[0])
    for partition in range(3):
        shared.rise(partition, 10 * partition)
    clock[0] = SETTLE_SECONDS
    assert shared.rise(2, 50) == 0
    shared.end(0)
    assert shared.rise(2, 50) == 10
    clock[0] += 56
    assert shared.rise(2, 60) == 10
    clock[0] += 2
    assert shared.rise(2, 60) == 60
