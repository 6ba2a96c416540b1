from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ITEMS_SCHEMA, FeatureNames, items_schema
from weir.pipelines.item_features import newest_known, observed
from weir.readers.features import with_features

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
