"""What a manifest says of a window's user features: the same however the examples are divided."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.panes import a_pane
from weir.contracts import FeatureNames, WindowManifest, columns, examples_schema
from weir.contracts.features import NO_FEATURES
from weir.contracts.user_features import UserFeatures

NAMES = FeatureNames(categorical=("lives", "langs"), dense=("age",))

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
        {columns.LABEL: labels, columns.USER_FEATURES: pa.array([row for row, _ in found], pa.struct(NAMES.fields))}
    )


@given(rows)
def test_it_says_how_long_lists_are_and_what_numbers_of_positives_are_like(found: list[Any]) -> None:
    said = UserFeatures.of(table_of(found), NAMES)
    for name in NAMES.categorical:
        assert said.categorical[name] == max([1, *(len(row[name]) for row, _ in found if row[name])])
    ages = [row["age"] for row, label in found if label > 0 and row["age"] is not None]
    count, mean, squares = said.dense["age"]
    assert count == len(ages)
    assert math.isclose(mean, np.mean(ages) if ages else 0, rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(squares, np.var(ages) * len(ages) if ages else 0, rel_tol=1e-6, abs_tol=1e-3)
    assert said.names == NAMES


@given(rows, st.lists(st.integers(0, 20), max_size=3))
def test_parts_say_together_what_the_whole_says(found: list[Any], cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(found)]
    parts = [table_of(found[start:stop]) for start, stop in pairwise(bounds)]
    whole = UserFeatures.of(table_of(found), NAMES)
    merged = UserFeatures.merged([UserFeatures.nothing(NAMES), *(UserFeatures.of(part, NAMES) for part in parts)])
    assert merged.names == NAMES
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
