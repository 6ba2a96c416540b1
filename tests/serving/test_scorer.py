import numpy as np
import pytest

from tests.serving.rescorers import bilinear, form
from tests.serving.support import mean_tower
from weir.contracts import IndexRows
from weir.serving import scorer as module
from weir.serving.index import ExactIndex
from weir.serving.scorer import Scorer

VECTORS = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)


@pytest.mark.parametrize("at_once", [1, 12, 1 << 16])
def test_it_scores_the_candidates_of_each_query_however_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_PAIRS", at_once)
    draw = np.random.default_rng(2)
    queries, rows = draw.standard_normal((7, 8)).astype(np.float32), draw.integers(-1, 30, (7, 5))
    found = Scorer(bilinear(form()))(queries, ExactIndex(VECTORS), IndexRows(rows))
    wanted = np.einsum("nd,nkd->nk", queries @ form(), VECTORS[rows])
    np.testing.assert_allclose(found[rows >= 0], wanted[rows >= 0], rtol=1e-4, atol=1e-5)
    assert found.dtype == np.float32


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_has_no_scores(shape: tuple[int, int]) -> None:
    rows = IndexRows(np.zeros(shape, np.int64))
    assert Scorer(bilinear(form()))(VECTORS[: shape[0]], ExactIndex(VECTORS), rows).shape == shape


def test_what_is_no_scorer_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Scorer(b"no model")
    with pytest.raises(ValueError, match=r"has inputs \('history', 'mask'\)"):
        Scorer(mean_tower())
