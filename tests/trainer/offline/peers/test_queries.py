import math

import numpy as np
import pytest
import torch
from scipy import sparse

from tests.trainer.offline.logs import log_of
from weir.trainer.offline.cases import Past
from weir.trainer.offline.peers.queries import Catalogue, recency

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
