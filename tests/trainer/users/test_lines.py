"""Lines hold all that examples say of users, through cuts and joins, and mean what a bundle makes of a table."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import FeatureNames, columns
from weir.contracts.feature_weights import FeatureWeights, Moments
from weir.contracts.user_features import UserFeatures
from weir.trainer.users.lines import Layout, UserLines

BUCKETS = 50
NAMES = FeatureNames(categorical=("lives", "langs"), dense=("age", "since"))

_texts = st.none() | st.lists(st.sampled_from(["a", "b", "street 7", ""]), max_size=4)
_numbers = st.none() | st.floats(-1e12, 1e12)
rows = st.lists(st.fixed_dictionaries({"lives": _texts, "langs": _texts, "age": _numbers, "since": _numbers}))


def lines_of(found: list[dict[str, object]], names: FeatureNames = NAMES) -> UserLines:
    struct = pa.array([{name: row[name] for name in names.all} for row in found], pa.struct(names.fields))
    table = pa.table({columns.USER_FEATURES: struct, columns.LABEL: np.ones(len(found), np.int8)})
    layout = Layout.of(UserFeatures.of(table, names), BUCKETS)
    return UserLines(layout, layout.encoded(struct, BUCKETS))


def weights() -> FeatureWeights:
    draw = np.random.default_rng(3)
    values, dense = draw.normal(size=(BUCKETS, 4)), draw.normal(size=(4, 32))
    moments = tuple(Moments(3.0, 1e9, 1e19) for _ in NAMES.dense)
    return FeatureWeights(NAMES, values.astype(np.float32), dense.astype(np.float32), moments)


def expected(found: list[dict[str, object]]) -> np.ndarray:
    """What a bundle's weights make of the same rows as a table."""
    struct = pa.array(found, pa.struct(NAMES.fields))
    return weights().embeddings(pa.table({name: struct.field(name) for name in NAMES.all}))


@given(rows)
def test_lines_mean_what_the_weights_of_a_bundle_make_of_the_features(found: list[dict[str, object]]) -> None:
    np.testing.assert_array_equal(lines_of(found).said(weights()), expected(found))


@given(first=rows, second=rows, fewer=st.booleans())
def test_parts_of_other_windows_are_joined_by_name(
    first: list[dict[str, object]], second: list[dict[str, object]], *, fewer: bool
) -> None:
    names = FeatureNames(categorical=("langs",), dense=("since",)) if fewer else NAMES
    together = UserLines.joined([lines_of(first), lines_of(second, names)])
    if fewer:
        second = [row | {"lives": None, "age": None} for row in second]
    np.testing.assert_array_equal(together.said(weights()), expected([*first, *second]))


@given(rows, st.integers(0, 5), st.integers(0, 5))
def test_some_lines_are_those_of_some_rows(found: list[dict[str, object]], start: int, stop: int) -> None:
    np.testing.assert_array_equal(lines_of(found).take(slice(start, stop)).said(weights()), expected(found)[start:stop])


def test_numbers_keep_all_of_their_bits() -> None:
    found = [{"lives": None, "langs": None, "age": 1_764_399_600.123, "since": None}]
    assert lines_of(found).numbers()["age"].tolist() == [1_764_399_600.123]
    assert np.isnan(lines_of(found).numbers()["since"]).all()


def test_of_users_of_whom_nothing_is_known_nothing_is_said() -> None:
    assert not UserLines.nothing(3).said(weights()).any()
    assert UserLines.nothing(3).said(weights()).shape == (3, 4)
