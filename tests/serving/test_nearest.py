from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, Store
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.index import AnnIndex
from weir.serving.search.retriever import nearest

ITEMS, LISTS = 90, 30


def loaded(folder: Path, index: str, catalogue: Catalogue, **parameters: int) -> LoadedBundle:
    store = Store(str(folder))
    write_bundle(store, "v1", catalogue, index=index, parameters=dict(parameters))
    return load_bundle(BundleLog(store), "v1")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> LoadedBundle:
    """Three items a list, of which one is visited."""
    folder = tmp_path_factory.mktemp("store")
    return loaded(folder, f"IVF{LISTS},Flat", Catalogue.random(ITEMS), nprobe=1)


def asked(seed: int, count: int = 3) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1000), st.lists(st.integers(1, ITEMS + 20), min_size=3, max_size=3), st.sampled_from([0, 1, 2, 7])
)
def test_each_query_finds_what_it_needs_whatever_others_need(
    bundle: LoadedBundle, seed: int, needed: list[int], nprobe: int
) -> None:
    """The oracle is a query alone: it visits one list, two, four, and so on, until they hold enough."""
    queries, wanted = asked(seed), np.array(needed)
    found = nearest(bundle, queries, min(max(needed), ITEMS), wanted, nprobe)
    for query, need, scores, rows in zip(queries, np.minimum(wanted, ITEMS).tolist(), *found, strict=True):
        kept = rows[rows >= 0]
        assert len(kept) >= need
        assert len(np.unique(kept)) == len(kept)
        np.testing.assert_allclose(scores[rows >= 0], bundle.exact.vectors[kept] @ query, atol=1e-5)
        lists = nprobe or 1
        while (alone := bundle.index.search(query[None], need, lists).rows[0]).min() < 0:
            lists *= 2
        expected = bundle.exact.search(query[None], need).rows[0] if lists >= LISTS else alone
        np.testing.assert_array_equal(rows[:need], expected)


def test_what_the_visited_lists_hold_is_enough_as_a_rule(bundle: LoadedBundle) -> None:
    queries = asked(0, 20)
    found, plain = nearest(bundle, queries, 1, np.ones(20, np.int64)), bundle.index.search(queries, 1)
    np.testing.assert_array_equal(found.rows, plain.rows)


def test_parts_of_a_graph_that_no_walk_comes_to_are_compared(tmp_path: Path) -> None:
    """Half of the items are the same one: each knows but its like."""
    catalogue = Catalogue.random(ITEMS)
    catalogue.vectors[: ITEMS // 2] = catalogue.vectors[0]
    bundle, queries = loaded(tmp_path, "HNSW4", catalogue), asked(1, 30)
    assert (bundle.index.search(queries, ITEMS).rows < 0).any(), "the walks come everywhere: take another catalogue"
    found = nearest(bundle, queries, ITEMS, np.full(30, ITEMS))
    expected = faiss.knn(queries, catalogue.vectors, ITEMS, metric=faiss.METRIC_INNER_PRODUCT)[0]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)
    np.testing.assert_array_equal(np.sort(found.rows, axis=1), np.tile(np.arange(ITEMS), (30, 1)))


def test_where_a_device_visits_no_more_lists_all_items_are_compared(bundle: LoadedBundle) -> None:
    assert isinstance(bundle.index, AnnIndex)
    limited = replace(bundle, index=replace(bundle.index, limit=3))
    queries, needed = asked(2, 200), np.full(200, 3)
    beyond = (bundle.index.search(queries, 3, 2).rows < 0).any(axis=1)
    assert beyond.any(), "two lists hold three of them for each query: take another catalogue"
    found, exact = nearest(limited, queries, 3, needed), bundle.exact.search(queries, 3)
    assert (found.rows >= 0).all()
    np.testing.assert_array_equal(found.rows[beyond], exact.rows[beyond])
