import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import FeatureNames, hash_id
from weir.contracts.feature_weights import FeatureWeights, Moments, buckets_of
from weir.contracts.features import MAX_DENSE

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
