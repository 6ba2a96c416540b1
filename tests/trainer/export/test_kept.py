import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.layers import Layers
from weir.trainer.export.clusters import Assigned
from weir.trainer.export.kept import ByRow, have_moved


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.2]))
def test_a_vector_has_moved_where_it_is_further_off_than_the_bound(seed: int, bound: float) -> None:
    rng = np.random.default_rng(seed)
    old = rng.normal(size=(40, 5)).astype(np.float32)
    new = (old + rng.choice([0.0, 0.005, 0.05, 1.0], (40, 1)) * rng.normal(size=(40, 5))).astype(np.float32)
    mine, other = rng.permutation(40)[:20], rng.permutation(40)[:20]
    moved = have_moved(Layers.of(old), mine, new, other, bound)
    distances = np.linalg.norm((new[other] - old[mine]).astype(np.float64), axis=1)
    limits = bound * np.linalg.norm(old[mine].astype(np.float64), axis=1)
    clear = np.abs(distances - limits) > 1e-5
    np.testing.assert_array_equal(moved[clear], (distances > limits)[clear])


def test_what_is_no_number_has_moved() -> None:
    old = np.ones((1, 2), np.float32)
    assert have_moved(Layers.of(old), np.array([0]), np.full((1, 2), np.nan, np.float32), np.array([0]), 0.5).all()
    assert not have_moved(Layers.of(old), np.array([0]), old, np.array([0]), 0.0).any()


def test_lists_by_row_follow_changes_and_items_without_a_row_have_none() -> None:
    first = ByRow.of(Assigned(np.array([4, 7, 2]), np.array([0.5, 0.25, 1.0], np.float32)))
    later = first.replaced(np.array([2, 3]), Assigned(np.array([9, 1]), np.ones(2, np.float32)), np.array([0]))
    for by_row, lists, cosines in [(first, [7, -1, 2], [0.25, 0, 1]), (later, [7, -1, 9], [0.25, 0, 1])]:
        taken = by_row.take(np.array([1, -1, 2]))
        assert (taken.lists.tolist(), taken.cosines.tolist()) == (lists, cosines)
    assert later.take(np.array([3])).lists.tolist() == [1]
