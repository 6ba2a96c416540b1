import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.contracts import INTERACTION_SCHEMA, ITEMS_SCHEMA, FeatureNames, interaction_schema, items_schema
from weir.contracts.features import CATEGORICAL_TYPE, lists_of_cells, values_of


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"categorical": ["a", "a"]}, "'a' is named twice"),
        ({"categorical": ["a"], "dense": ["a"]}, "'a' is named twice"),
        ({"dense": [""]}, "at least 1 character"),
        ({"dense": [str(number) for number in range(33)]}, "at most 32 items"),
        ({"numeric": ["a"]}, "numeric"),
    ],
)
def test_names_that_cannot_be_stored_are_refused(names: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FeatureNames(**names)


def test_without_features_the_schemas_are_as_ever() -> None:
    assert interaction_schema(FeatureNames()) is INTERACTION_SCHEMA
    assert items_schema(FeatureNames()) == ITEMS_SCHEMA


def test_features_come_after_the_other_columns() -> None:
    names = FeatureNames(categorical=["genre"], dense=["price"])
    assert names.all == ("genre", "price")
    added = [pa.field("genre", pa.list_(pa.string())), pa.field("price", pa.float64())]
    assert list(items_schema(names)) == [*ITEMS_SCHEMA, *added]
    assert list(interaction_schema(names).field("features").type) == added
    assert FeatureNames.model_validate(json.loads(names.model_dump_json())) == names


@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), min_size=2, max_size=2), max_size=9), st.data())
def test_values_of_lists_are_those_that_lists_have_and_not_what_lies_hidden(
    rows: list[list[str | None] | None], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows)))
    pairs = pa.array(rows, pa.list_(pa.string(), 2))
    texts = pa.array([value for row in rows for value in row or ["hidden", "too"]], pa.string())
    gone = pa.array([row is None for row in rows], pa.bool_())
    masked = pa.ListArray.from_arrays(pa.array(range(0, 2 * len(rows) + 1, 2), pa.int32()), texts, mask=gone)
    for lists in (pairs, masked, masked.cast(CATEGORICAL_TYPE), pa.array(rows, CATEGORICAL_TYPE)):
        places, values = values_of(lists.slice(start))
        expected = [(place, value) for place, row in enumerate(rows[start:]) for value in row or ()]
        assert list(zip(places.tolist(), values.to_pylist(), strict=True)) == expected


def test_cells_spell_lists() -> None:
    assert lists_of_cells(pa.array(["jazz|new", "jazz", "", None])).to_pylist() == [
        ["jazz", "new"],
        ["jazz"],
        [""],
        None,
    ]
