import math

import numpy as np
import pytest
from scipy import sparse

from weir.trainer.offline.peers.ease import gram
from weir.trainer.offline.peers.item_knn import item_knn

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
