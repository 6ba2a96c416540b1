""""""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from tests.trainer.offline.logs import log_of
from weir.trainer.offline.peers import Catalogue, ease, gram, item_knn, recency
from weir.trainer.offline.splits import Past

seen_by = arrays.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 6)), elements=st.sampled_from([0, 1]))


@settings(max_examples=50)
@given(seen_by, st.sampled_from([0.5, 3.0, 40.0]))
def test_each_column_is_a_ridge_regression_on_the_other_items(seen: np.ndarray, l2: float) -> None:
    found = ease(gram(sparse.csr_matrix(seen.astype(np.float32))), l2)
    for item in range(seen.shape[1]):
        others = np.delete(np.arange(seen.shape[1]), item)
        apart = seen[:, others]
        # The definition, without its closed form: items explain an item, but not themselves.
        stacked = np.vstack([apart, np.sqrt(l2) * np.eye(len(others))])
        wanted = np.linalg.lstsq(stacked, np.append(seen[:, item], np.zeros(len(others))))[0]
        assert found[others, item] == pytest.approx(wanted, abs=1e-4)
        assert found[item, item] == 0


def test_a_gram_matrix_counts_the_users_of_both_items() -> None:
    seen = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], np.float32)
    found = gram(sparse.csr_matrix(seen)).toarray()
    assert found.tolist() == [[3, 2, 1], [2, 2, 1], [1, 1, 1]]


SEEN = np.random.default_rng(0).random((30, 8)) < 0.4


def by_hand(shrinkage: float) -> list[list[float]]:
    items = range(SEEN.shape[1])
    users = [set(np.flatnonzero(SEEN[:, item])) for item in items]

    def similar(one: int, other: int) -> float:
        if one == other:
            return 0.0
        return len(users[one] & users[other]) / (math.sqrt(len(users[one]) * len(users[other])) + shrinkage)

    return [[similar(one, other) for other in items] for one in items]


@pytest.mark.parametrize("shrinkage", [0.0, 10.0])
@pytest.mark.parametrize("neighbours", [1, 3, 100])
def test_rows_hold_the_cosines_of_the_nearest_items(neighbours: int, shrinkage: float) -> None:
    found = item_knn(gram(sparse.csr_matrix(SEEN.astype(np.float32))), neighbours, shrinkage).toarray()
    for row, wanted in zip(found, by_hand(shrinkage), strict=True):
        kept = sorted(range(len(wanted)), key=lambda item: (-wanted[item], item))[:neighbours]
        assert row == pytest.approx([value if item in kept else 0.0 for item, value in enumerate(wanted)])


# Items 0, 2 and 4 are known in training; user 0 repeats item 2 after it.
LOG = log_of([0, 1, 0, 1, 0, 0, 0, 1], [2, 4, 0, 2, 3, 2, 4, 1], sizes=(2, 6))
TRAIN = np.arange(4)


def test_weights_halve_with_so_many_newer_items() -> None:
    assert recency(np.array([0, 3, 6]), 3.0).tolist() == [1.0, 0.5, 0.25]
    assert recency(np.array([0, 3, 6]), None).tolist() == [1.0, 1.0, 1.0]


def test_a_catalogue_holds_who_has_which_item_of_training_once() -> None:
    repeated = Catalogue(LOG, np.array([0, 0, 1, 2, 3]))
    assert repeated.known.tolist() == [0, 2, 4]
    assert repeated.seen.toarray().tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("half_life", "wanted"),
    [
        # User 0 before row 6: items 2, 0, 3 (unknown), 2; user 1 before row 7: items 4, 2.
        (None, [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]),
        (1.0, [[0.25, 1.0, 0.0], [0.0, 1.0, 0.5]]),
        (0.1, [[0.0, 1.0, 0.0], [0.0, 1.0, 2.0**-10]]),
    ],
)
def test_a_query_weighs_the_newest_place_of_each_known_item(half_life: float | None, wanted: list[list[float]]) -> None:
    past = Past.of_interactions(LOG, np.array([6, 7]))
    found = Catalogue(LOG, TRAIN).query(past, np.array([0, 1]), half_life)
    # At a half-life of a tenth of an item the second newest has a weight below a thousandth.
    expected = np.where(np.array(wanted) < 1e-3, 0, wanted)
    assert found.toarray() == pytest.approx(expected)


def test_scores_are_weighted_sums_and_unknown_items_have_none() -> None:
    past = Past.of_interactions(LOG, np.array([6, 7]))
    catalogue = Catalogue(LOG, TRAIN)
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    for matrix in (weights, sparse.csr_matrix(weights)):
        found = catalogue.scores(matrix, past, 1.0)(torch.tensor([1, 0]))
        none = -math.inf
        assert found.tolist() == [[6.0, none, 7.5, none, 9.0, none], [3.0, none, 4.25, none, 5.5, none]]


def test_a_case_without_a_past_has_no_scores_but_zeros() -> None:
    log = log_of([0, 1, 2], [0, 1, 0])
    past = Past.of_interactions(log, np.array([2]))
    found = Catalogue(log, np.arange(2)).scores(np.ones((2, 2), np.float32), past, None)(torch.tensor([0]))
    assert found.tolist() == [[0.0, 0.0]]
