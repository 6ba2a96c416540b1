"""What holds for every estimator, whatever it is made of."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sketches.support import I64, key_arrays
from weir.sketches import CountMinSketch, ExactCounter, FrequencyBank, FrequencyEstimator, GapEstimator, load

Build = Callable[[], FrequencyEstimator]
BUILDS: dict[str, Build] = {
    "conservative": lambda: CountMinSketch(64, 3),
    "linear": lambda: CountMinSketch(64, 3, conservative=False),
    "exact": ExactCounter,
    "gap": lambda: GapEstimator(64, 3, 0.1),
    "bank": lambda: FrequencyBank([10.0, 100.0, 1000.0], 64, 3),
}
every = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


@every
@given(batches=st.lists(key_arrays(30), max_size=3), asked=key_arrays(30), factor=st.floats(1e-9, 1.0))
def test_log_q_is_finite_and_never_above_zero(build: Build, batches: list[I64], asked: I64, factor: float) -> None:
    estimator = build()
    for batch in batches:
        estimator.update(batch)
    estimator.decay(factor)
    log_q = estimator.log_q(asked)
    assert log_q.shape == asked.shape
    assert log_q.dtype == np.float64
    assert np.isfinite(log_q).all()
    assert (log_q <= 0.0).all()


@every
def test_empty_batches_change_nothing(build: Build) -> None:
    estimator = build()
    estimator.update(np.arange(5))
    before = estimator.to_bytes()
    estimator.update(np.array([], dtype=np.int64))
    estimator.update([], [])
    assert estimator.to_bytes() == before
    assert estimator.estimate(np.array([], dtype=np.int64)).shape == (0,)


@every
def test_an_empty_estimator_knows_nothing(build: Build) -> None:
    estimator = build()
    assert isinstance(estimator, FrequencyEstimator)
    assert estimator.total == 0.0
    np.testing.assert_array_equal(estimator.estimate(np.arange(3)), np.zeros(3))
    np.testing.assert_array_equal(estimator.log_q(np.arange(3)), np.zeros(3))


@every
@given(batches=st.lists(key_arrays(40), max_size=3))
def test_bytes_round_trip_and_go_on_alike(build: Build, batches: list[I64]) -> None:
    estimator = build()
    for batch in batches:
        estimator.update(batch)
    data = estimator.to_bytes()
    again = load(data)
    assert type(again) is type(estimator)
    assert again.to_bytes() == data
    for each in (estimator, again):
        each.decay(0.75)
        each.update(np.arange(10))
    assert again.to_bytes() == estimator.to_bytes()
    assert again.total == estimator.total


@every
@given(position=st.integers(0, 10**6), change=st.integers(1, 255))
def test_any_altered_byte_is_noticed(build: Build, position: int, change: int) -> None:
    estimator = build()
    estimator.update(np.arange(7))
    data = bytearray(estimator.to_bytes())
    data[position % len(data)] ^= change
    with pytest.raises(ValueError, match=r"sketch|kind|hash"):
        type(estimator).from_bytes(bytes(data))


@every
@given(kept=st.floats(0.0, 1.0, exclude_max=True))
def test_any_truncation_is_noticed(build: Build, kept: float) -> None:
    estimator = build()
    estimator.update(np.arange(7))
    data = estimator.to_bytes()
    with pytest.raises(ValueError, match="sketch"):
        load(data[: int(kept * len(data))])


@every
@pytest.mark.parametrize(
    ("keys", "weights", "named"),
    [
        (np.zeros((2, 2), dtype=np.int64), None, r"shape \(2, 2\)"),
        (np.array([1.5]), None, "float64"),
        (np.array([1], dtype=np.uint64), None, "uint64"),
        (np.arange(3), [1.0, 2.0], r"\(3,\).*\(2,\)"),
        (np.arange(3), [1.0, -2.0, 1.0], r"-2.0 at position 1"),
        (np.arange(2), [np.nan, 1.0], r"nan at position 0"),
        (np.arange(2), [1.0, np.inf], r"inf at position 1"),
        (np.arange(2), [2.0**31, 2.0**31], r"2\*\*32"),
    ],
)
def test_bad_batches_are_named_and_not_counted(build: Build, keys: I64, weights: list[float], named: str) -> None:
    estimator = build()
    before = estimator.to_bytes()
    with pytest.raises(ValueError, match=named):
        estimator.update(keys, weights)
    assert estimator.to_bytes() == before


@every
@pytest.mark.parametrize("factor", [0.0, -0.5, 1.5, float("nan")])
def test_decay_factor_lies_in_0_to_1(build: Build, factor: float) -> None:
    with pytest.raises(ValueError, match=str(factor)):
        build().decay(factor)


@every
@pytest.mark.parametrize("unseen", [0.0, -1.0, float("inf"), float("nan")])
def test_unseen_is_a_positive_count(build: Build, unseen: float) -> None:
    with pytest.raises(ValueError, match=str(unseen)):
        build().log_q(np.arange(2), unseen=unseen)


@every
def test_merging_nothing_of_the_same_kind_keeps_the_estimates(build: Build) -> None:
    estimator = build()
    estimator.update(np.repeat(np.arange(5), np.arange(1, 6)))
    before = estimator.estimate(np.arange(8))
    estimator.merge(build())
    # A decayed sketch may have to round its cells to the coarser quantum of the fresh one.
    np.testing.assert_allclose(estimator.estimate(np.arange(8)), before, rtol=1e-5)


@every
def test_merging_another_kind_is_refused(build: Build) -> None:
    estimator = build()
    stranger = CountMinSketch(64) if isinstance(estimator, ExactCounter) else ExactCounter()
    with pytest.raises(ValueError, match=type(stranger).__name__):
        estimator.merge(stranger)


def test_log_q_is_the_log_of_the_share() -> None:
    counter = ExactCounter()
    counter.update(np.repeat(np.arange(3), [6, 3, 1]))
    expected = np.log([0.6, 0.3, 0.1, 0.05])
    np.testing.assert_allclose(counter.log_q(np.arange(4)), expected)
    np.testing.assert_allclose(counter.log_q(np.arange(4), unseen=2.0), np.log([0.6, 0.3, 0.2, 0.2]))
