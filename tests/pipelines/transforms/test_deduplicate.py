""""""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ITEMS_SCHEMA, FeatureNames, Store, items_schema
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run import Base, Run
from weir.pipelines.transforms.deduplicate import Deduplicate, ShardWindow, newest_known, observed
from weir.pipelines.transforms.split import ShardSlice
from weir.readers.features import with_features

SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("timestamp", pa.int64()),
        ("label", pa.int8()),
        ("weight", pa.float32()),
        ("attribution_token", pa.string()),
        ("position", pa.int64()),
        ("user_key", pa.int64()),
        ("item_key", pa.int64()),
        ("event_key", pa.int64()),
    ]
)
RUN = Run("one", Base(), {}, PipelineConfig(window_seconds=10).window_ms, 0, flush=True)

Row = tuple[str, int, int, int, int | None, int]
rows = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 10_000),
        st.integers(0, 4),
        st.sampled_from([1, -1, 0]),
        st.one_of(st.none(), st.integers(1, 3)),
        st.integers(7, 8),
    ),
    min_size=1,
    max_size=15,
)


def merged(found: list[Row], cuts: int) -> ShardWindow:
    """Rows (partition, position, time, label, event, user) in pieces of up to `cuts` rows."""
    pieces = []
    for name in "ab":
        mine = [row for row in found if row[0] == name]
        for at in range(0, len(mine), cuts):
            table = [
                dict(zip(SCHEMA.names, (f"i{time}", time, label, 1.0, None, at, user, time + 1, event), strict=True))
                for _, at, time, label, event, user in mine[at : at + cuts]
            ]
            pieces.append(ShardSlice(name, 0, pa.RecordBatch.from_pylist(table, SCHEMA)))
    [(shard, [window])] = Deduplicate(Store("memory://d"), RUN).process((3, reversed(pieces)))
    assert shard == window.shard == 3
    return window


@given(rows, st.integers(1, 4))
def test_the_first_copy_in_order_stays_however_rows_are_cut(found: list[Row], cuts: int) -> None:
    found = [(name, 100 * number + at % 100, *rest) for number, (name, at, *rest) in enumerate(found)]
    window, kept, known = merged(found, cuts), [], set()
    for _, at, time, label, event, user in sorted(found, key=lambda row: (row[2], row[0], row[1])):
        if event is None or (user, event) not in known:
            kept.append((time, at, label))
        known.add((user, event))
    stored = [(row["timestamp"], row["position"], row["label"]) for row in window.rows.to_pylist()]
    assert stored == [row for row in kept if row[2]]
    assert window.counts.model_dump() == {
        "events": len(stored),
        "positives": sum(label == 1 for _, _, label in kept),
        "negatives": sum(label == -1 for _, _, label in kept),
        "ignored": sum(label == 0 for _, _, label in kept),
        "duplicates": len(found) - len(kept),
        "late": 0,
        "unknown_histories": 0,
    }
    positives = [time for time, _, label in kept if label == 1]
    items = {row["item_key"]: (row["item_id"], row["count"]) for row in window.items.to_pylist()}
    assert items == {time + 1: (f"i{time}", positives.count(time)) for time in positives}
    users = {row["user_key"]: row["count"] for row in window.users.to_pylist()}
    assert sum(users.values()) == len(positives)


def test_windows_of_a_shard_come_in_order_of_time() -> None:
    pieces = []
    for start in (20_000, 0, 10_000, 20_000):
        row = dict(zip(SCHEMA.names, ("i", start + 1, 1, 1.0, None, len(pieces), 7, 9, None), strict=True))
        pieces.append(ShardSlice("a", start, pa.RecordBatch.from_pylist([row], SCHEMA)))
    [(_, windows)] = Deduplicate(Store("memory://d"), RUN).process((3, pieces))
    assert [(window.name.start_ms, window.counts.events) for window in windows] == [(0, 1), (10_000, 1), (20_000, 2)]


NAMES = FeatureNames(categorical=["genre"], dense=["price"])
KEYED = pa.schema([("item_key", pa.int64()), ("user_key", pa.int64()), ("timestamp", pa.int64())])

said = st.tuples(
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from([None, ["jazz"], ["rock", "pop"], []]),
    st.one_of(st.none(), st.integers(0, 9).map(float)),
)


def rows_of(found: list[Any]) -> pa.Table:
    keyed = pa.Table.from_pylist([dict(zip(KEYED.names, row[:3], strict=True)) for row in found], KEYED)
    genres = pa.array([row[3] for row in found], pa.list_(pa.string()))
    prices = pa.array([row[4] for row in found], pa.float64())
    return with_features(keyed, {"genre": genres, "price": prices}, NAMES)


@given(st.lists(said, max_size=25), st.integers(1, 3), st.randoms())
def test_the_newest_known_value_is_kept_however_users_are_sharded(found: list[Any], shards: int, random: Any) -> None:
    parts = [rows_of([row for row in found if row[1] % shards == shard]) for shard in range(shards)]
    told = [observed(part) for part in parts]
    random.shuffle(told)
    keys = sorted({row[0] for row in found})
    items = pa.Table.from_pylist([{"item_key": key, "item_id": f"i{key}", "count": 1} for key in keys], ITEMS_SCHEMA)
    kept = newest_known(items, told, NAMES)
    assert kept.schema == items_schema(NAMES)
    assert kept.select(ITEMS_SCHEMA.names) == items
    for row in kept.to_pylist():
        mine = sorted((one for one in found if one[0] == row["item_key"]), key=lambda one: (one[2], one[1]))
        for place, name in ((3, "genre"), (4, "price")):
            assert row[name] == next((one[place] for one in reversed(mine) if one[place] is not None), None)


@given(st.lists(said, min_size=1, max_size=25))
def test_no_more_rows_are_kept_than_tell_something(found: list[Any]) -> None:
    kept = observed(rows_of(found))
    assert kept is not None
    assert len(kept) <= 2 * len({row[0] for row in found})


def test_without_features_nothing_is_added() -> None:
    items, none = pa.Table.from_pylist([{"item_key": 1, "item_id": "i", "count": 2}], ITEMS_SCHEMA), FeatureNames()
    rows = pa.table({name: np.zeros(1, np.int64) for name in KEYED.names})
    assert observed(rows) is None
    assert newest_known(items, [], none) is items
