import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.config import SketchConfig
from weir.pipelines.transforms.count import CountItemsAndUsers, CountKeys, SketchCoder
from weir.sketches import CountMinSketch, ExactCounter

tables = st.lists(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), max_size=9), max_size=4)


def table(rows: list[tuple[int, int]], column: str = "item_key") -> pa.Table:
    schema = pa.schema([(column, pa.int64()), ("count", pa.int64())])
    return pa.Table.from_pylist([{column: key, "count": count} for key, count in rows], schema)


@given(tables, tables)
def test_merged_accumulators_equal_one_sketch_of_all(
    left: list[list[tuple[int, int]]], right: list[list[tuple[int, int]]]
) -> None:
    combiner, parts = CountKeys(SketchConfig(width=64, depth=3, conservative=False), "item_key"), []
    for half in (left, right):
        accumulator = combiner.create_accumulator()
        for rows in half:
            accumulator = combiner.add_input(accumulator, table(rows))
        parts.append(SketchCoder().decode(SketchCoder().encode(accumulator)))
    found = SketchCoder().decode(combiner.extract_output(combiner.merge_accumulators(parts)))
    whole = CountMinSketch(64, 3, conservative=False)
    rows = [row for part in left + right for row in part]
    whole.update([key for key, _ in rows], [float(count) for _, count in rows])
    assert found.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (SketchConfig(width=64), CountMinSketch),
        (SketchConfig(width=64, conservative=False), CountMinSketch),
        (SketchConfig(kind="exact"), ExactCounter),
    ],
    ids=["conservative", "linear", "exact"],
)
def test_the_combiner_counts_items_and_users_in_beam(config: SketchConfig, kind: type) -> None:
    def check(found: list[tuple[bytes, bytes]]) -> None:
        [pair] = found
        items, users = map(SketchCoder().decode, pair)
        assert isinstance(items, kind)
        assert isinstance(users, kind)
        assert items.estimate([7, 8, 1]).tolist() == [5.0, 1.0, 0.0]
        assert users.estimate([7, 8, 1]).tolist() == [0.0, 2.0, 4.0]

    users = [table([(1, 2)], "user_key"), table([(1, 2), (8, 2)], "user_key")]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        parts = pipeline | beam.Create(list(zip([table([(7, 2)]), table([(7, 3), (8, 1)])], users, strict=True)))
        assert_that(parts | beam.CombineGlobally(CountItemsAndUsers(config)).without_defaults(), check)


def test_manifests_say_what_was_chosen() -> None:
    assert SketchConfig().parameters() == {"kind": "count_min", "width": 65536, "depth": 4, "conservative": True}
    assert SketchConfig(kind="exact").parameters() == {"kind": "exact"}
