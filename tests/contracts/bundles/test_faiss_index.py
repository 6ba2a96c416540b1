""""""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from weir.contracts.bundles.faiss_index import (
    append_lists,
    is_graph,
    keep_places,
    keeps_places,
    widen_walks,
    without_rows,
)

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


VECTORS = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
KINDS = ["IVF4,Flat", "IVF4,SQfp16", "IVF4,SQ8"]


def built(kind: str) -> Any:
    index = faiss.index_factory(8, kind, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    index.nprobe = 4
    return index


def contents(index: Any) -> list[tuple[list[int], bytes]]:
    """Return the ids and codes of each list."""
    found = []
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        if size:
            ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), size).tolist()
            codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size).tobytes()
            found.append((ids, codes))
        else:
            found.append(([], b""))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", [False, True])
def test_lists_are_appended_and_the_others_stay(kind: str, places: bool) -> None:
    index = built(kind)
    if places:
        keep_places(index)
    before, found = contents(index), index.search(VECTORS[:5], 10)
    append_lists(index, VECTORS[:3])
    index.nprobe = 7
    assert contents(index) == [*before, *[([], b"")] * 3]
    for mine, theirs in zip(index.search(VECTORS[:5], 10), found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    again = faiss.deserialize_index(faiss.serialize_index(index))
    assert contents(again) == contents(index)
    np.testing.assert_array_equal(again.quantizer.reconstruct(4), VECTORS[0])
    np.testing.assert_array_equal(index.quantizer.reconstruct(6), VECTORS[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [0, faiss.IO_FLAG_MMAP_IFC])
def test_a_copy_without_rows_grows_as_if_it_had_never_had_any(kind: str, flags: int, tmp_path: Path) -> None:
    faiss.write_index(built(kind), str(tmp_path / "index"))
    index = faiss.read_index(str(tmp_path / "index"), flags)
    before, copy = contents(index), without_rows(index)
    assert (copy.ntotal, copy.nprobe, contents(copy)) == (0, 4, [([], b"")] * 4)
    append_lists(copy, VECTORS[:3])
    copy.add(VECTORS)
    fresh = built(kind)
    fresh.reset()
    append_lists(fresh, VECTORS[:3])
    fresh.add(VECTORS)
    assert contents(copy) == contents(fresh)
    assert contents(index) == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_keeps_places_holds_the_same_and_removes_by_number(kind: str) -> None:
    index = built(kind)
    before = contents(index)
    keep_places(index)
    assert keeps_places(index)
    assert keeps_places(faiss.clone_index(index))
    assert contents(index) == before
    assert index.remove_ids(faiss.IDSelectorArray(np.array([7, 299, 0, 1000]))) == 3
    left = sorted(row for ids, _ in contents(index) for row in ids)
    assert left == sorted(set(range(300)) - {0, 7, 299})


@pytest.mark.parametrize("kind", ["Flat", "HNSW8", "IVF4,PQ4x4fs"])
def test_what_takes_no_deltas_or_has_no_lists_keeps_no_places(kind: str) -> None:
    index = built(kind) if kind.startswith("IVF") else faiss.index_factory(8, kind, faiss.METRIC_INNER_PRODUCT)
    keep_places(index)
    assert not keeps_places(index)
