""""""

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.contracts.panes import a_pane
from weir.contracts import (
    INTERACTION_SCHEMA,
    ITEMS_SCHEMA,
    FeatureNames,
    WindowManifest,
    examples_schema,
    hash_id,
    interaction_schema,
    items_schema,
)
from weir.contracts.base import columns
from weir.contracts.interactions.features import (
    CATEGORICAL_TYPE,
    MAX_DENSE,
    NO_FEATURES,
    FeatureWeights,
    Moments,
    UserFeatures,
    buckets_of,
    lists_of_cells,
    values_of,
)

floats = st.floats(-1e6, 1e6)
NAMES = FeatureNames(categorical=["genre", "artist"], dense=["price"])
BUCKETS, WIDTH = 50, 4


@given(st.lists(st.lists(floats, max_size=8), max_size=5), st.lists(floats, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(parts: list[list[float]], asked: list[float]) -> None:
    moments = Moments()
    for part in parts:
        moments.add(np.array(part, np.float64))
    whole, values = np.array([value for part in parts for value in part]), np.array([*asked, np.nan])
    found = moments.standardised(values)
    assert found[-1] == 0
    if len(whole):
        np.testing.assert_allclose(moments.mean, whole.mean(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(moments.squares, whole.var() * len(whole), rtol=1e-6, atol=1e-3)
    if len(whole) and whole.std() > 1e-3:
        expected = np.clip((values[:-1] - whole.mean()) / whole.std(), -5, 5)
        np.testing.assert_allclose(found[:-1], expected, rtol=1e-3, atol=1e-3)


def test_a_number_that_never_varies_says_nothing() -> None:
    moments = Moments()
    moments.add(np.full(3, 7.0))
    assert moments.standardised(np.array([7.0, 9.0])).tolist() == [0, 0]


def weights() -> FeatureWeights:
    random = np.random.default_rng(0)
    values = random.standard_normal((BUCKETS, WIDTH)).astype(np.float32)
    dense = random.standard_normal((WIDTH, MAX_DENSE)).astype(np.float32)
    return FeatureWeights(NAMES, values, dense, (Moments(4.0, 2.0, 16.0),))


def test_an_item_is_the_sum_of_the_means_of_its_values_and_of_its_standardised_numbers() -> None:
    known = weights()
    rows = [(["jazz", "blues"], ["ann"], 4.0), ([], None, None), (["jazz"], None, 100.0)]
    genres, artists, prices = zip(*rows, strict=True)
    table = pa.table(
        {
            "price": pa.array(prices, pa.float64()),
            "genre": pa.array(genres),
            "artist": pa.array(artists, pa.list_(pa.string())),
        }
    )

    def vector(name: str, value: str) -> np.ndarray:
        return known.values[hash_id(f"{name}\0{value}") % 2**64 % BUCKETS]

    expected = [
        (vector("genre", "jazz") + vector("genre", "blues")) / 2 + vector("artist", "ann") + 1.0 * known.dense[:, 0],
        np.zeros(WIDTH),
        vector("genre", "jazz") + 5.0 * known.dense[:, 0],
    ]
    np.testing.assert_allclose(known.embeddings(table), expected, rtol=1e-5, atol=1e-6)
    # What a catalogue does not have a column for is unknown of all its items.
    only = known.embeddings(table.select(["genre"]))
    np.testing.assert_allclose(only[2], vector("genre", "jazz"), rtol=1e-5)


def test_what_is_written_is_read_and_equal_weights_give_equal_bytes() -> None:
    known = weights()
    found = FeatureWeights.decode(known.encode())
    assert found.names == NAMES
    np.testing.assert_array_equal(found.values, known.values)
    np.testing.assert_array_equal(found.dense, known.dense)
    assert [(one.count, one.mean, one.squares) for one in found.moments] == [(4.0, 2.0, 16.0)]
    assert found.encode() == known.encode() == weights().encode()


@pytest.mark.parametrize("fault", ["dimension", "moments", "nan", "bytes"])
def test_what_does_not_fit_together_is_refused(fault: str) -> None:
    known = weights()
    if fault == "bytes":
        with pytest.raises((ValueError, OSError, EOFError)):
            FeatureWeights.decode(b"no archive")
        return
    values, moments = known.values.copy(), known.moments
    if fault == "dimension":
        values = values[:, :2]
    elif fault == "moments":
        moments = ()
    else:
        values[3, 1] = np.nan
    with pytest.raises(ValueError, match="holds"):
        FeatureWeights.decode(FeatureWeights(NAMES, values, known.dense, moments).encode())


def test_a_value_means_something_else_under_another_name() -> None:
    lists = pa.array([["jazz", "blues"], [], ["jazz"]])
    one, other = buckets_of("genre", lists, 2**30), buckets_of("artist", lists, 2**30)
    assert one.tolist()[1] == [-1, -1]
    assert one[0, 0] == one[2, 0] != other[0, 0]


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


USER_NAMES = FeatureNames(categorical=("lives", "langs"), dense=("age",))

_texts = st.none() | st.lists(st.sampled_from(["a", "b", ""]), max_size=5)
rows = st.lists(
    st.tuples(
        st.fixed_dictionaries({"lives": _texts, "langs": _texts, "age": st.none() | st.floats(-1e6, 1e6)}),
        st.sampled_from([1, -1]),
    ),
    max_size=20,
)


def table_of(found: list[Any]) -> pa.Table:
    labels = pa.array([label for _, label in found], pa.int8())
    return pa.table(
        {
            columns.LABEL: labels,
            columns.USER_FEATURES: pa.array([row for row, _ in found], pa.struct(USER_NAMES.fields)),
        }
    )


@given(rows)
def test_it_says_how_long_lists_are_and_what_numbers_of_positives_are_like(found: list[Any]) -> None:
    said = UserFeatures.of(table_of(found), USER_NAMES)
    for name in USER_NAMES.categorical:
        assert said.categorical[name] == max([1, *(len(row[name]) for row, _ in found if row[name])])
    ages = [row["age"] for row, label in found if label > 0 and row["age"] is not None]
    count, mean, squares = said.dense["age"]
    assert count == len(ages)
    assert math.isclose(mean, np.mean(ages) if ages else 0, rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(squares, np.var(ages) * len(ages) if ages else 0, rel_tol=1e-6, abs_tol=1e-3)
    assert said.names == USER_NAMES


@given(rows, st.lists(st.integers(0, 20), max_size=3))
def test_parts_say_together_what_the_whole_says(found: list[Any], cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(found)]
    parts = [table_of(found[start:stop]) for start, stop in pairwise(bounds)]
    whole = UserFeatures.of(table_of(found), USER_NAMES)
    merged = UserFeatures.merged(
        [UserFeatures.nothing(USER_NAMES), *(UserFeatures.of(part, USER_NAMES) for part in parts)]
    )
    assert merged.names == USER_NAMES
    assert merged.categorical == whole.categorical
    for one, other in zip(merged.dense["age"], whole.dense["age"], strict=True):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-3)


def test_without_any_a_manifest_is_as_it_was_and_with_some_it_reads_as_written() -> None:
    plain = a_pane(0)
    assert "user_features" not in plain.model_dump()
    said = UserFeatures(categorical={"lives": 2}, dense={"age": (3.0, 1 / 3, 2e-300)})
    pane = plain.model_copy(update={"user_features": said})
    assert WindowManifest.model_validate_json(pane.model_dump_json()).user_features == said
    assert UserFeatures.of(pa.table({}), NO_FEATURES) == UserFeatures() == UserFeatures.merged([])


def test_a_later_format_may_say_more() -> None:
    assert UserFeatures.model_validate({"categorical": {"a": 1}, "mood": 3}).categorical == {"a": 1}


def test_examples_have_the_features_in_a_struct_of_their_own() -> None:
    schema = examples_schema(3, 2, FeatureNames(categorical=["label"], dense=["weight"]))
    assert [field.name for field in schema.field(columns.USER_FEATURES).type] == ["label", "weight"]
    with pytest.raises(KeyError):
        examples_schema(3).field(columns.USER_FEATURES)
