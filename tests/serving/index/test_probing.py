"""Search under filters against brute force, for every way that it may take."""

from collections.abc import Sequence

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.tagging import WAYS, search_by
from weir.contracts import IndexRows
from weir.serving.index import probing as filtered
from weir.serving.index.eligibility import RowMask
from weir.serving.index.index import AnnIndex, ExactIndex, on_device
from weir.serving.index.popular import rowset
from weir.serving.index.probing import FilteredSearch, filtered_cost

DIMENSION, ITEMS = 16, 20_000


class Space:
    """Clustered vectors, the cluster of each, and an index over them."""

    def __init__(self, items: int, lists: int) -> None:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((items // 50, DIMENSION))
        self.cluster = rng.integers(0, len(centres), items)
        vectors = centres[self.cluster] + 0.7 * rng.standard_normal((items, DIMENSION))
        self.vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        queries = centres[:24] + 0.7 * rng.standard_normal((24, DIMENSION))
        self.queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
        index = faiss.index_factory(DIMENSION, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.train(self.vectors)
        index.add(self.vectors)
        self.index: AnnIndex = on_device(index, {"nprobe": 8}, "cpu")
        self.exact = ExactIndex(self.vectors)

    def search(self, rows: np.ndarray, index: AnnIndex | None = None) -> FilteredSearch:
        return FilteredSearch(index, self.exact, RowMask(rowset(rows), len(self.vectors)))

    def truth(self, rows: np.ndarray, k: int) -> np.ndarray:
        scores = self.queries @ self.vectors[rows].T
        return rows[np.argsort(-scores, axis=1)[:, :k]]


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(ITEMS, 256)


@pytest.fixture(params=WAYS[1:])
def probing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Visit lists, however few rows pass."""
    search_by(request.param, monkeypatch)


def recall(found: Sequence[np.ndarray] | np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(one, best)) / len(best) for one, best in zip(found, truth, strict=True)]))


def chosen(space: Space, share: float, *, together: bool) -> np.ndarray:
    count, rng = max(1, round(share * ITEMS)), np.random.default_rng(2)
    if not together:
        return np.sort(rng.choice(ITEMS, count, replace=False))
    return np.sort(np.argsort(rng.permutation(space.cluster.max() + 1)[space.cluster], kind="stable")[:count])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("share", [1, 0.5, 0.1, 0.03, 0.01, 0.001, 0.0001])
@pytest.mark.parametrize("k", [10, 100])
def test_the_best_are_found_at_any_selectivity(space: Space, share: float, k: int, *, together: bool) -> None:
    rows = chosen(space, share, together=together)
    found = space.search(rows, space.index).search(space.queries, k)
    assert found.rows.shape == (24, min(k, len(rows)))
    assert np.isin(found.rows, rows).all()
    assert (np.diff(found.scores, axis=1) <= 0).all()
    np.testing.assert_allclose(
        found.scores, np.einsum("qd,qkd->qk", space.queries, space.vectors[found.rows]), atol=2e-3
    )
    assert recall(found.rows, space.truth(rows, k)) >= 0.95


@pytest.mark.usefixtures("probing")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("share", [1, 0.1, 0.01, 0.001])
def test_so_they_are_in_lists_however_few_rows_pass(space: Space, share: float, *, together: bool) -> None:
    rows = chosen(space, share, together=together)
    found = space.search(rows, space.index).search(space.queries, 20)
    assert found.rows.shape == (24, min(20, len(rows)))
    assert all(len(set(one)) == len(one) for one in found.rows.tolist())
    assert recall(found.rows, space.truth(rows, 20)) >= 0.95


@pytest.mark.usefixtures("probing")
@settings(max_examples=60, deadline=None)
@given(
    rows=st.sets(st.integers(0, ITEMS - 1), max_size=60),
    far=st.integers(0, 255),
    k=st.integers(1, 200),
    nprobe=st.integers(0, 300),
)
def test_k_rows_are_found_wherever_they_lie(space: Space, rows: set[int], far: int, k: int, nprobe: int) -> None:
    """Few rows, some in one list that may be the farthest one from a query."""
    inside = np.flatnonzero(space.index.lists_of(IndexRows(np.arange(ITEMS))) == far)[:30]
    passing = np.union1d(np.array(sorted(rows), np.int64), inside)
    found = space.search(passing, space.index).search(space.queries, k, nprobe)
    assert found.rows.shape == (24, min(k, len(passing)))
    assert np.isin(found.rows, passing).all()
    if k >= len(passing):
        assert all(sorted(one) == passing.tolist() for one in found.rows.tolist())


@pytest.mark.usefixtures("probing")
@settings(max_examples=30, deadline=None)
@given(
    share=st.sampled_from([0.002, 0.02, 0.5]),
    left_out=st.lists(st.integers(0, 400), min_size=24, max_size=24),
    k=st.integers(1, 60),
)
def test_what_a_query_leaves_out_costs_it_none_of_the_others(
    space: Space, share: float, left_out: list[int], k: int
) -> None:
    """Those left out are the best ones, as what a user has seen often is; all lists are visited."""
    rows = chosen(space, share, together=False)
    ranked = space.truth(rows, len(rows))
    search = space.search(rows, space.index)
    before = search.passing.bits.copy()
    excluded = [IndexRows(best[:count]) for best, count in zip(ranked, left_out, strict=True)]
    found = search.search(space.queries, k, 256, excluded).rows
    np.testing.assert_array_equal(search.passing.bits, before)
    for query, one, best, count in zip(space.queries, found, ranked, left_out, strict=True):
        kept = one[(one >= 0) & ~np.isin(one, best[:count])][:k]
        expected = best[count : count + k]
        assert len(set(kept.tolist())) == len(kept) == len(expected)
        np.testing.assert_allclose(space.vectors[kept] @ query, space.vectors[expected] @ query, atol=2e-3)


@pytest.mark.usefixtures("probing")
@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_the_best_of_the_others_are_found_in_few_lists(space: Space, share: float) -> None:
    rows = chosen(space, share, together=False)
    ranked = space.truth(rows, 220)
    excluded = [IndexRows(best[:200]) for best in ranked]
    found = space.search(rows, space.index).search(space.queries, 20, excluded=excluded).rows
    kept = [one[~np.isin(one, best[:200])][:20] for one, best in zip(found, ranked, strict=True)]
    assert recall(kept, ranked[:, 200:]) >= 0.95


@settings(max_examples=30, deadline=None)
@given(rows=st.sets(st.integers(0, ITEMS - 1), max_size=300), k=st.integers(1, 400), block=st.integers(1, 100))
def test_comparing_block_by_block_changes_nothing(space: Space, rows: set[int], k: int, block: int) -> None:
    passing = np.array(sorted(rows), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtered, "_BLOCK", block)
        found = space.search(passing).search(space.queries, k)
    np.testing.assert_array_equal(found.rows, space.truth(passing, k) if len(passing) else np.empty((24, 0)))


def test_lists_are_chosen_where_comparing_costs_more(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    among = ExactIndex.search_among

    def counted(index: ExactIndex, queries: np.ndarray, k: int, rows: IndexRows) -> filtered.Found:
        compared.append(len(rows))
        return among(index, queries, k, rows)

    monkeypatch.setattr(ExactIndex, "search_among", counted)
    for share, exactly in ((1, False), (0.5, False), (0.01, True)):
        compared.clear()
        space.search(chosen(space, share, together=False), space.index).search(space.queries[:1], 10)
        assert bool(compared) is exactly, share
    compared.clear()
    # Without lists to choose from there is one way only.
    space.search(chosen(space, 0.5, together=False)).search(space.queries[:1], 10)
    assert sum(compared) == ITEMS // 2


def test_no_rows_and_no_queries_are_no_special_case(space: Space) -> None:
    assert space.search(np.empty(0, np.int64), space.index).search(space.queries, 5).rows.shape == (24, 0)
    everything = space.search(np.arange(ITEMS), space.index)
    assert everything.search(space.queries[:0], 5).rows.shape == (0, 5)


def test_indexes_whose_lists_cannot_be_chosen_say_so() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    for kind, choosing in (("IVF4,Flat", True), ("IVF4,SQ8", True), ("HNSW8", False), ("PCA4,IVF4,Flat", False)):
        index = faiss.index_factory(8, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        found = on_device(index, {}, "cpu")
        assert found.chooses_lists is choosing, kind
        if choosing:
            lists = found.lists_of(IndexRows(np.arange(200)))
            ids = [
                faiss.rev_swig_ptr(index.invlists.get_ids(n), index.invlists.list_size(n)).tolist() for n in range(4)
            ]
            assert all(lists[row] == number for number, rows in enumerate(ids) for row in rows)
            assert found.sizes.tolist() == [len(rows) for rows in ids]


def test_the_estimate_grows_with_what_it_depends_on() -> None:
    assert filtered_cost(10, 0, 1_000_000) > filtered_cost(10, 4000, 1_000_000)
    assert filtered_cost(10, 4000, 1_000_000) == filtered_cost(100, 4000, 1_000_000) < filtered_cost(1000, 4000, 10**6)
    assert filtered_cost(10, 4000, 1000) == filtered_cost(10, 0, 1000)
