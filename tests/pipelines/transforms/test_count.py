import apache_beam as beam
import pyarrow as pa
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import SketchConfig
from pipelines.transforms.count import CountItems, SketchCoder
from sketches import CountMinSketch

tables = st.lists(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), max_size=9), max_size=4)


def table(rows: list[tuple[int, int]]) -> pa.Table:
    schema = pa.schema([("item_key", pa.int64()), ("count", pa.int64())])
    return pa.Table.from_pylist([{"item_key": key, "count": count} for key, count in rows], schema)


@given(tables, tables)
def test_merged_accumulators_equal_one_sketch_of_all(
    left: list[list[tuple[int, int]]], right: list[list[tuple[int, int]]]
) -> None:
    combiner, parts = CountItems(SketchConfig(width=64, depth=3, conservative=False)), []
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


def test_the_combiner_runs_in_beam() -> None:
    def check(found: list[bytes]) -> None:
        [encoded] = found
        assert SketchCoder().decode(encoded).estimate([7, 8]).tolist() == [5.0, 1.0]

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        parts = pipeline | beam.Create([table([(7, 2)]), table([(7, 3), (8, 1)])])
        assert_that(parts | beam.CombineGlobally(CountItems(SketchConfig(width=64))).without_defaults(), check)
