import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from weir.trainer.offline.peers.ease import ease, gram

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
