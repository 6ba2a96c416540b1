import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from contracts import INTERACTION_SCHEMA, hash_id
from pipelines.blocks import Batch, BlockId, Progress
from pipelines.config import PipelineConfig
from pipelines.positions import Committed, Run
from pipelines.transforms.read import PROGRESS
from pipelines.transforms.split import Keyed, Locate, MergeProgress, Release, runs_of

CONFIG = PipelineConfig(window_seconds=10, user_shards=3)
COUNTED = {0: {"p": 5, "other": 99}, 20_000: {"p": 8}}


def a_run(**changes: object) -> Run:
    fields = {"committed": Committed(COUNTED, {0: 1, 20_000: 1}, 29_000, 1), "flush": False, "lateness_ms": 3000}
    return Run(
        **{"partitions": {}, "starts": {}, "seen": {}, "dead_before": {}, "window_ms": 10_000} | fields | changes
    )


def batch(rows: list[tuple[str, int]]) -> Batch:
    table = [
        {"user_id": user, "item_id": "i", "timestamp": time, "label": 1, "weight": 1.0, "position": position}
        for position, (user, time) in enumerate(rows)
    ]
    return Batch(BlockId("p", 0), pa.RecordBatch.from_pylist(table, INTERACTION_SCHEMA), 4, len(rows))


rows = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cyd", "dan"]), st.integers(0, 49_999)), max_size=14)


@given(rows, st.booleans())
def test_every_uncounted_row_of_a_closed_window_is_in_the_piece_of_its_window_and_shard(
    found: list[tuple[str, int]], flush: bool
) -> None:
    run, keyed, progress = a_run(flush=flush), list[Keyed](), Progress()
    for element in Locate(run).process(batch(found)):
        if isinstance(element, Keyed):
            keyed.append(element)
        else:
            assert element.tag == PROGRESS
            progress = MergeProgress().add_input(progress, element.value)
    fresh = [
        (position, user, time)
        for position, (user, time) in enumerate(found)
        if position >= COUNTED.get(time // 10_000 * 10_000, {}).get("p", 0)
    ]
    seen = progress.partitions["p"]
    assert progress.max_event_ms == max((time for _, time in found), default=-1)
    assert (seen.dead, seen.stop) == (4, len(found))
    assert seen.lowest == {time // 10_000 * 10_000: at for at, _, time in reversed(fresh)}
    watermark = 10**15 if flush else max(29_000, progress.max_event_ms) - 3000
    released = []
    for element in keyed:
        for stamped in Release(run, CONFIG).process(element, progress):
            shard, piece = stamped.value
            start = stamped.timestamp.micros // 1000
            for row in piece.rows.to_pylist():
                assert row["timestamp"] // 10_000 * 10_000 == start
                assert row["user_key"] % 2**64 % 3 == shard
                released.append((row["position"], row["user_key"], row["timestamp"]))
    closed = [(at, hash_id(user), time) for at, user, time in fresh if time // 10_000 * 10_000 + 10_000 <= watermark]
    assert sorted(released) == closed


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))).map(sorted))
def test_runs_of_cover_equal_rows(pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    runs = list(runs_of(first, second))
    assert [place for start, stop in runs for place in range(start, stop)] == list(range(len(pairs)))
    assert [set(pairs[start:stop]) for start, stop in runs] == [{pair} for pair in sorted(set(pairs))]
