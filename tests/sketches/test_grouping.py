import numpy as np
from hypothesis import given

from sketches.grouping import sum_by_key
from tests.sketches.support import F64, I64, true_counts, weighted_batches, zipf


@given(batch=weighted_batches(100))
def test_sums_equal_a_dictionary(batch: tuple[I64, F64 | None]) -> None:
    distinct, sums = sum_by_key(*batch)
    truth = true_counts([batch])
    assert sorted(distinct.tolist()) == sorted(truth)
    np.testing.assert_allclose(sums, [truth[key] for key in distinct.tolist()], rtol=1e-12)


def test_large_batches_equal_sorting() -> None:
    """Large enough that thousands of keys share a slot of the table with another key."""
    keys = zipf(100_000, 300_000, 0.8)
    distinct, sums = sum_by_key(keys, None)
    order = np.argsort(distinct)
    expected, counts = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(distinct[order], expected)
    np.testing.assert_array_equal(sums[order], counts)
