""""""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks import lines_of_ranks
from weir.contracts import FeatureNames, hash_id
from weir.contracts.interactions.features import MAX_DENSE
from weir.trainer.items.featured import inputs_of
from weir.trainer.items.features import NEVER, Column, FeatureTable
from weir.trainer.items.table import FIRST_ITEM, PADDING, SHARED
from weir.trainer.towers.features import FeatureInputs

NAMES = FeatureNames(categorical=["genre"], dense=["price"])
BUCKETS = 1 << 20
floats = st.floats(-1e6, 1e6)


def tell(table: FeatureTable, said: dict[int, tuple[list[str] | None, float | None]], event_ms: int) -> None:
    columns = {
        "genre": pa.array([genre for genre, _ in said.values()], pa.list_(pa.string())),
        "price": pa.array([price for _, price in said.values()], pa.float64()),
    }
    table.update(np.array(list(said), np.int64), pa.table(columns), NAMES, event_ms)


def inputs(table: FeatureTable) -> FeatureInputs:
    return inputs_of(table, *table.read(torch.arange(table.places.capacity)), torch.float64)


def bags(table: FeatureTable) -> list[dict[int, float]]:
    """Bucket -> weight, for every row."""
    buckets, weights, _ = (part.tolist() for part in inputs(table))
    return [{b: w for b, w in zip(*row, strict=True) if w} for row in zip(buckets, weights, strict=True)]


def bag(name: str, *values: str) -> dict[int, float]:
    return {hash_id(f"{name}\0{value}") % 2**64 % BUCKETS: 1 / len(values) for value in values}


def test_an_item_is_the_mean_of_its_values_and_numbers_are_standardised() -> None:
    table = FeatureTable(BUCKETS, 8)
    tell(table, {2: (["jazz"], 1.0), 3: (["rock", "pop"], 3.0), 4: (None, None), 5: ([], 2.0)}, 0)
    found = bags(table)
    assert found[2] == bag("genre", "jazz")
    assert found[3] == bag("genre", "rock", "pop")
    assert not any(found[row] for row in (PADDING, SHARED, 4, 5, 6, 7))
    numbers = inputs(table).dense
    assert numbers.shape == (8, MAX_DENSE)
    np.testing.assert_allclose(numbers[2:6, 0], [-np.sqrt(1.5), np.sqrt(1.5), 0, 0])
    assert not numbers[:, 1:].any()
    assert table.names == NAMES


def test_what_is_null_leaves_what_is_known_and_an_empty_list_does_not() -> None:
    table = FeatureTable(BUCKETS, 4)
    tell(table, {2: (["jazz"], 1.0), 3: (["pop"], 2.0)}, 0)
    tell(table, {2: (None, 5.0), 3: ([], None)}, 1)
    assert bags(table)[2:] == [bag("genre", "jazz"), {}]
    assert inputs(table).dense[2, 0] > inputs(table).dense[3, 0]


def test_a_late_window_fills_gaps_and_undoes_nothing() -> None:
    table = FeatureTable(BUCKETS, 4)
    tell(table, {2: (["new", "newer"], None)}, 10)
    tell(table, {2: (["old"], 1.0), 3: (["late"], 2.0)}, 5)
    assert bags(table)[2:] == [bag("genre", "new", "newer"), bag("genre", "late")]
    assert inputs(table).dense[2:, 0].tolist() == [-1, 1]
    tell(table, {2: (["newest"], None)}, 11)
    assert bags(table)[2] == bag("genre", "newest")


def test_items_without_a_row_are_passed_over_and_rows_are_forgotten_with_their_owner() -> None:
    table = FeatureTable(BUCKETS, 4)
    table.update(
        np.array([SHARED, 2, SHARED]),
        pa.table({"genre": [["a"], ["b"], ["c"]], "price": [1.0, 2.0, 6.0]}),
        NAMES,
        7,
    )
    assert bags(table) == [{}, {}, bag("genre", "b"), {}]
    table.forget(np.array([2]))
    assert bags(table) == [{}] * 4
    assert not inputs(table).dense.any()
    tell(table, {2: (["older"], None)}, 3)
    assert bags(table)[2] == bag("genre", "older")


def test_the_same_value_under_another_name_is_another_one_and_new_names_are_taken_in() -> None:
    table = FeatureTable(BUCKETS, 4)
    table.update(np.array([2]), pa.table({"a": [["x"]]}), FeatureNames(categorical=["a"]), 0)
    table.update(np.array([2]), pa.table({"b": [["x"]], "n": [1.0]}), FeatureNames(categorical=["b"], dense=["n"]), 1)
    assert bags(table)[2] == bag("a", "x") | bag("b", "x")
    assert len(bags(table)[2]) == 2
    assert table.names == FeatureNames(categorical=["a", "b"], dense=["n"])


def test_too_many_dense_features_are_refused() -> None:
    table = FeatureTable(BUCKETS, 4)
    for start in (0, 20):
        names = FeatureNames(dense=[f"n{number}" for number in range(start, start + 20)])
        values = pa.table({name: [1.0] for name in names.dense})
        if start:
            with pytest.raises(ValueError, match="name 40 dense features by now, at most 32"):
                table.update(np.array([2]), values, names, 0)
        else:
            table.update(np.array([2]), values, names, 0)


genres = st.one_of(st.none(), st.lists(st.sampled_from("abcdef"), max_size=4))
windows = st.lists(
    st.tuples(
        st.dictionaries(st.integers(FIRST_ITEM, 7), st.tuples(genres, st.one_of(st.none(), floats)), max_size=5),
        st.integers(0, 3),
    ),
    max_size=5,
)


@given(windows, windows, st.sampled_from([8, 16]))
def test_a_table_survives_its_tensors_and_goes_on_bit_for_bit(before: Any, after: Any, capacity: int) -> None:
    table = FeatureTable(16, 8)
    for said, event_ms in before:
        tell(table, said, event_ms)
    other = FeatureTable(16, 8)
    other.load_state_dict({name: torch.as_tensor(value).clone() for name, value in table.state_dict().items()})
    for said, event_ms in after:
        for one in (table, other):
            tell(one, said, event_ms)
    for one in (table, other):
        one.grow(capacity)
    mine, theirs = table.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if np.asarray(mine[name]).tobytes() != np.asarray(theirs[name]).tobytes()] == []
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(inputs(table), inputs(other), strict=True))
    assert len(inputs(table).buckets) == capacity


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_share_features_and_each_keeps_its_own(ranks: int, tmp_path: Path) -> None:
    kept = lines_of_ranks(ranks, Path(__file__).with_name("features_of_ranks.py"), tmp_path)
    assert sum(kept) == 64
    assert max(kept) - min(kept) <= 1


def test_without_features_there_is_nothing_to_keep() -> None:
    table = FeatureTable(16, 8)
    table.grow(16)
    table.forget(np.array([3]))
    assert table.state_dict() == {}
    assert not inputs(table).weights.any()
    table.load_state_dict({})
    assert table.names == FeatureNames()


def test_a_feature_that_changes_its_kind_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    table, rows = FeatureTable(16, 8), np.array([2])
    texts, numbers = pa.array([["x"]], pa.list_(pa.string())), pa.array([1.0])
    table.update(rows, pa.table({"a": texts, "b": numbers}), FeatureNames(categorical=("a",), dense=("b",)), 0)
    before = inputs(table)
    table.update(rows, pa.table({"a": numbers, "b": texts}), FeatureNames(categorical=("b",), dense=("a",)), 1)
    assert table.names == FeatureNames(categorical=("a",), dense=("b",))
    assert all(torch.equal(one, other) for one, other in zip(inputs(table), before, strict=True))
    assert [record.getMessage() for record in caplog.records] == [
        f"item feature {name} was of another kind before: it is left out; give it another name" for name in ("a", "b")
    ]


LINES = 5
values = st.lists(st.integers(0, 9), min_size=1, max_size=3)
changes = st.one_of(
    st.tuples(st.just("set"), st.integers(0, LINES - 1), values, st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, LINES - 1)),
    st.tuples(st.just("grow")),
)


@given(st.lists(changes))
def test_a_row_has_the_newest_values_since_it_was_forgotten(made: list[tuple[object, ...]]) -> None:
    column = Column.empty(LINES, torch.int32, torch.device("cpu"))
    known: dict[int, tuple[list[int], int]] = {}
    for change, *how in made:
        if change == "grow":
            column.grow(len(column.values) + 2)
        elif change == "forget":
            column.forget(torch.tensor(how))
            known.pop(how[0], None)
        else:
            line, new, event_ms = how
            column.widen(len(new))
            column.set(torch.tensor([line]), torch.tensor([new], dtype=torch.int32), event_ms)
            if event_ms >= known.get(line, ((), NEVER))[1]:
                known[line] = new, event_ms
    width = column.values.shape[1]
    for line, (row, told_ms) in enumerate(zip(column.values.tolist(), column.told_ms.tolist(), strict=True)):
        expected, since = known.get(line, ([], NEVER))
        assert row == expected + [-1] * (width - len(expected))
        assert told_ms == since


def test_an_unknown_number_is_not_a_number() -> None:
    column = Column.empty(2, torch.float64, torch.device("cpu"))
    column.grow(3)
    assert column.of("values").isnan().all()
    assert column.of("told_ms").tolist() == [NEVER] * 3
