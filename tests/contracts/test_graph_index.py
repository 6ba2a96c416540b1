from typing import Any

import faiss
import numpy as np
import pytest

from weir.contracts.graph_index import is_graph, widen_walks

DIMENSION, ITEMS = 16, 4000


def clustered(count: int, seed: int) -> np.ndarray:
    """Vectors of the same forty clusters, whatever the seed."""
    centres, draw = np.random.default_rng(9).standard_normal((40, DIMENSION)), np.random.default_rng(seed)
    vectors = centres[draw.integers(40, size=count)] + 0.5 * draw.standard_normal((count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def graph_of(factory: str) -> Any:
    index, vectors = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT), clustered(ITEMS, 0)
    index.train(vectors)
    index.add(vectors)
    return index


@pytest.mark.parametrize(
    ("factory", "expected"),
    [("Flat", False), ("SQ8", False), ("IVF4,Flat", False), ("IVF4_HNSW8,Flat", False), ("HNSW8", True),
     ("HNSW8_SQ8", True), ("PCA8,HNSW8", True), ("L2norm,PCA8,HNSW8", True), ("PCA8,Flat", False)],
)  # fmt: skip
def test_a_graph_is_one_below_what_transforms_its_vectors_too(factory: str, expected: bool) -> None:
    assert is_graph(faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)) == expected


@pytest.mark.parametrize("k", [10, 100, 1000])
@pytest.mark.parametrize("factory", ["HNSW8", "L2norm,HNSW8"])
def test_a_wide_walk_finds_k_and_nine_in_ten_of_the_best(factory: str, k: int) -> None:
    index, queries = graph_of(factory), clustered(50, 1)
    best = faiss.knn(queries, clustered(ITEMS, 0), k, metric=faiss.METRIC_INNER_PRODUCT)[1]
    narrow = index.search(queries, k)[1]
    widen_walks(index, k)
    wide = index.search(queries, k)[1]
    assert (wide >= 0).all()
    recall = [np.mean([np.isin(*pair).mean() for pair in zip(best, found, strict=True)]) for found in (narrow, wide)]
    assert recall[0] < recall[1]
    assert recall[1] > 0.9
    if k == 1000:
        assert (narrow < 0).any()


def test_as_many_candidates_as_asked_for_are_kept_even_for_one_row() -> None:
    index = graph_of("HNSW8")
    widen_walks(index, 1, at_least=500)
    assert index.hnsw.efSearch == 500
    widen_walks(index, 1)
    assert index.hnsw.efSearch == 64
