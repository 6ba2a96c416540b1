from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import INTERACTION_SCHEMA, SourceSpan, Store, hash_id
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.progress import PendingRows, Progress
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.transforms.read import PROGRESS
from weir.pipelines.transforms.split import (
    OPEN,
    AssignWindows,
    EmitClosed,
    Keyed,
    MergeProgress,
    ReloadPending,
    runs_of,
)
from weir.readers import BlockId, ValidatedBlock

CONFIG = PipelineConfig(window_seconds=10, user_shards=3)
COUNTED = {0: 5, 20_000: 8}
RESUME, STOP = 2, 9


def a_run(**changes: Any) -> Run:
    sources = {
        "p": SourceSpan(start=0, stop=STOP, resume=RESUME, size=9),
        "other": SourceSpan(start=0, stop=99, resume=99, size=9),
    }
    base = Base(sources=sources, counted={"p": COUNTED}, max_event_ms=29_000)
    fields: dict[str, Any] = {
        "id": "one",
        "base": base,
        "partitions": {},
        "window_ms": 10_000,
        "lateness_ms": 3000,
        "flush": False,
    }
    return Run(**fields | changes)


def batch(rows: list[tuple[str, int]]) -> ValidatedBlock:
    table = [
        {"user_id": user, "item_id": "i", "timestamp": time, "label": 1, "weight": 1.0, "position": position}
        for position, (user, time) in enumerate(rows)
    ]
    return ValidatedBlock(BlockId("p", 0), pa.RecordBatch.from_pylist(table, INTERACTION_SCHEMA), 4, len(rows))


rows = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cyd", "dan"]), st.integers(0, 49_999)), max_size=14)


@given(rows, st.booleans(), st.sets(st.integers(0, 14)))
def test_every_uncounted_row_is_in_the_piece_of_its_closed_window_and_shard_or_kept_for_later(
    found: list[tuple[str, int]], flush: bool, refused: set[int]
) -> None:
    store = Store("memory://split")
    run = a_run(flush=flush, refused={"p": np.array(sorted(refused), np.int64)})
    keyed, progress = list[Keyed](), Progress()
    for element in AssignWindows(store, run).process(batch(found)):
        if isinstance(element, Keyed):
            keyed.append(element)
        else:
            assert element.tag == PROGRESS
            progress = MergeProgress().add_input(progress, element.value)
    # An unfinished last line lies at or behind the stop, and is read again when it is complete.
    still_refused = {position for position in refused if position < STOP}
    fresh = [
        (position, user, time)
        for position, (user, time) in enumerate(found)
        if position >= max(RESUME, COUNTED.get(time // 10_000 * 10_000, 0)) and position not in still_refused
    ]
    seen = progress.partitions["p"]
    assert progress.max_event_ms == max((time for _, time in found), default=-1)
    assert (seen.dead, seen.stop) == (4, len(found))
    assert seen.lowest == {time // 10_000 * 10_000: at for at, _, time in reversed(fresh)}
    watermark = 10**15 if flush else max(29_000, progress.max_event_ms) - 3000
    released, kept = [], list[PendingRows]()
    for element in keyed:
        for found_piece in EmitClosed(store, run, CONFIG).process(element, progress):
            if isinstance(found_piece, TaggedOutput):
                assert found_piece.tag == OPEN
                kept.append(found_piece.value)
                continue
            shard, piece = found_piece
            for row in piece.rows.to_pylist():
                assert row["timestamp"] // 10_000 * 10_000 == piece.start_ms
                assert row["user_key"] % 2**64 % 3 == shard
                released.append((row["position"], row["user_key"], row["timestamp"]))
    closed = [(at, hash_id(user), time) for at, user, time in fresh if time // 10_000 * 10_000 + 10_000 <= watermark]
    assert sorted(released) == closed
    # What is kept comes back once its window closes, and not before.
    waiting = [(at, hash_id(user), time) for at, user, time in fresh if time // 10_000 * 10_000 + 10_000 > watermark]
    assert not [rows for one in kept for rows in ReloadPending(store, run).process(one, progress)]
    later = [(one, rows) for one in kept for rows in ReloadPending(store, a_run(flush=True)).process(one, progress)]
    came_back = []
    for one, found_rows in later:
        assert set(found_rows.windows.tolist()) == {one.start_ms}
        listed = found_rows.rows.to_pylist()
        assert one.lowest == min(row["position"] for row in listed)
        came_back += [(row["position"], row["user_key"], row["timestamp"]) for row in listed]
    assert sorted(came_back) == waiting


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))).map(sorted))
def test_runs_of_cover_equal_rows(pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    runs = list(runs_of(first, second))
    assert [place for start, stop in runs for place in range(start, stop)] == list(range(len(pairs)))
    assert [set(pairs[start:stop]) for start, stop in runs] == [{pair} for pair in sorted(set(pairs))]
