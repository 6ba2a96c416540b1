""""""

import io
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.base.arrays import Layers
from weir.trainer.export.index import (
    Assigned,
    Clusters,
    check_index,
    empty_index,
    factory,
    family,
    filled,
    info_of,
    least_items,
    write_index,
)


def vectors(n: int, d: int = 16) -> np.ndarray:
    raw = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def test_the_type_follows_the_size_unless_it_is_forced() -> None:
    assert factory(49_999, "auto") == "Flat"
    assert factory(50_000, "auto") == "IVF894,SQfp16"
    assert factory(1_000_000, "auto") == "IVF4000,SQfp16"
    assert factory(10, "HNSW32") == "HNSW32"


def test_it_compares_by_inner_product_and_knows_its_probes() -> None:
    items = vectors(300)
    index = empty_index(16, "IVF4,Flat")
    index.train(items)
    index.add(items)
    assert info_of(index, "IVF4,Flat", 3).parameters == {"nprobe": 3}
    assert info_of(index, "IVF4,Flat", 99).parameters == {"nprobe": 4}
    file = io.BytesIO()
    write_index(index, file)
    assert file.getvalue() == faiss.serialize_index(index).tobytes()
    read = faiss.deserialize_index(np.frombuffer(file.getvalue(), np.uint8))
    assert (read.ntotal, read.d, read.metric_type) == (300, 16, faiss.METRIC_INNER_PRODUCT)
    assert info_of(empty_index(16, "Flat"), "Flat", 32).parameters == {}


@pytest.mark.parametrize("kind", ["Banana7", "IVFx,Flat", "PQ5x8", "IVF4,Flat,"])
def test_a_setting_that_makes_no_index_is_named_with_what_is_allowed(kind: str) -> None:
    for known in ("auto", "Flat", "IVF40000,SQfp16", "HNSW32", "OPQ4_8,IVF4,PQ4x4"):
        check_index(known, 16)
    with pytest.raises(ValueError, match=f"^index = {kind}: .*tower.dimension = 16 numbers; expected auto"):
        check_index(kind, 16)


def test_a_type_that_cannot_be_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Banana"):
        empty_index(16, "Banana7")


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("Flat", 1),
        ("SQfp16", 1),
        ("HNSW8", 1),
        ("IVF40,Flat", 40),
        ("IVF40,SQfp16", 40),
        ("IVF40_HNSW8,SQ8", 40),
        ("IVF40,PQ4x4", 40),
        ("IVF4,PQ4x4", 16),
        ("IVF4,PQ4x4fs", 16),
        ("PQ4x6", 64),
        ("HNSW8_PQ4x6", 64),
        ("OPQ4_8,IVF4,PQ4x4", 256),
        ("PCA8,IVF40,Flat", 40),
    ],
)
def test_so_many_items_train_it_and_one_less_does_not(kind: str, least: int) -> None:
    assert least_items(empty_index(16, kind)) == least
    index, items = empty_index(16, kind), vectors(least)
    index.train(items)
    index.add(items)
    assert index.ntotal == least
    if least > 1:
        with pytest.raises(RuntimeError, match=f"Number of training points \\({least - 1}\\)"):
            empty_index(16, kind).train(items[:-1])


D = 32


def topics(n: int, count: int, seed: int, draw: int = 1) -> np.ndarray:
    """Return n vectors of length 1 around `count` directions that follow from the seed."""
    centres, rng = np.random.default_rng(seed).normal(size=(count, D)), np.random.default_rng(draw)
    raw = centres[rng.integers(0, count, n)] + 0.5 * rng.normal(size=(n, D))
    return np.ascontiguousarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), np.float32)


@pytest.fixture(scope="module")
def known() -> tuple[np.ndarray, Clusters, Assigned]:
    items = topics(4000, 30, 0)
    return items, *Clusters.trained(empty_index(D, "IVF32,SQfp16"), "IVF32,SQfp16", items)


def recall(clusters: Clusters, items: np.ndarray, lists: np.ndarray, queries: np.ndarray) -> float:
    index = clusters.filled(items, lists)
    index.nprobe = 2
    _, found = index.search(queries, 20)
    exact = np.argsort(-(queries @ items.T), axis=1)[:, :20]
    return float(np.mean([len(np.intersect1d(*pair)) / 20 for pair in zip(found, exact, strict=True)]))


def test_the_lists_are_those_that_faiss_would_choose(known: tuple[np.ndarray, Clusters, Assigned]) -> None:
    items, clusters, assigned = known
    whole = empty_index(D, "IVF32,SQfp16")
    whole.train(items)
    whole.add(items)
    filled = clusters.filled(items, assigned.lists)
    assert faiss.serialize_index(filled).tobytes() == faiss.serialize_index(whole).tobytes()
    assert clusters.empty.ntotal == 0


def test_the_cosines_are_those_of_items_and_their_centroids(known: tuple[np.ndarray, Clusters, Assigned]) -> None:
    items, clusters, assigned = known
    wanted = (items * clusters.centroids()[assigned.lists]).sum(1)
    np.testing.assert_allclose(assigned.cosines, wanted, atol=1e-5)
    assert clusters.fit.cosine == pytest.approx(np.quantile(wanted, 0.05), abs=1e-5)
    again = clusters.measured(3 * items, assigned.lists)
    np.testing.assert_allclose(again.cosines, wanted, atol=1e-5)
    assert (clusters.fit.trained_items, clusters.fit.trained_lists) == (4000, 32)


def test_a_repair_finds_items_of_new_topics_again(known: tuple[np.ndarray, Clusters, Assigned]) -> None:
    old, clusters, _ = known
    fresh = topics(2000, 60, 7)
    items = np.concatenate([old, fresh])
    queries = topics(200, 60, 7, draw=2)
    assigned = clusters.assign(items)
    assert (assigned.cosines[4000:] < clusters.fit.cosine).mean() > 0.5
    before = recall(clusters, items, assigned.lists, queries)
    repaired, moved = clusters.repaired(items, assigned) or (clusters, assigned)
    assert repaired.lists >= 32 + 64
    assert repaired.kind == f"IVF{repaired.lists},SQfp16"
    assert (repaired.fit.repairs, clusters.fit.repairs, clusters.lists) == (1, 0, 32)
    # Whatever moved fits better, and nothing else moved.
    better = moved.cosines > assigned.cosines
    np.testing.assert_array_equal(better, moved.lists != assigned.lists)
    np.testing.assert_allclose(moved.cosines, repaired.measured(items, moved.lists).cosines, atol=1e-5)
    assert before < 0.7
    assert recall(repaired, items, moved.lists, queries) > 0.98
    index = repaired.filled(items, moved.lists)
    assert faiss.deserialize_index(faiss.serialize_index(index)).nlist == repaired.lists


def test_a_few_misfits_are_no_reason_for_a_repair(known: tuple[np.ndarray, Clusters, Assigned]) -> None:
    items, clusters, assigned = known
    assert clusters.repaired(items[:500], assigned.take(np.arange(500))) is None


def test_the_number_of_lists_does_not_make_another_kind() -> None:
    assert family("IVF894,SQfp16") == family("IVF1000,SQfp16") != family("IVF894,Flat")


WIDTH = 16


@cache
def trained(kind: str) -> Any:
    index = empty_index(WIDTH, kind)
    index.train(np.random.default_rng(0).normal(size=(400, WIDTH)).astype(np.float32))
    return index


def added(empty: Any, rows: np.ndarray, lists: np.ndarray, vectors: np.ndarray) -> Any:
    index = faiss.clone_index(empty)
    arrays = (vectors[rows], rows, lists.astype(np.int64))
    index.add_core(len(rows), *map(faiss.swig_ptr, arrays))
    return index


@pytest.mark.parametrize("kind", ["IVF5,Flat", "IVF5,SQfp16", "IVF5,SQ8", "IVF5,PQ4x4", "IVF5,RaBitQ"])
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40), chosen=st.sets(st.integers(0, 4), min_size=1))
def test_it_is_the_index_that_faiss_fills_bit_for_bit(kind: str, seed: int, count: int, chosen: set[int]) -> None:
    """Of all rows or some, in lists of which others are empty, whatever rows come together."""
    draw = np.random.default_rng(seed)
    empty, vectors = trained(kind), draw.normal(size=(count, WIDTH)).astype(np.float32)
    rows = np.sort(draw.permutation(count)[: draw.integers(0, count + 1)])
    lists = draw.choice(sorted(chosen), len(rows)).astype(np.int32)
    wanted = faiss.serialize_index(added(empty, rows, lists, vectors)).tobytes()
    for base in (vectors, Layers.of(vectors)):
        with patch("weir.trainer.export.index._BLOCK", 7):
            assert faiss.serialize_index(filled(empty, rows, lists, base)).tobytes() == wanted
    assert empty.ntotal == 0


def test_it_finds_what_the_index_finds_that_faiss_fills() -> None:
    draw = np.random.default_rng(0)
    empty, vectors = trained("IVF5,SQfp16"), draw.normal(size=(300, WIDTH)).astype(np.float32)
    lists = draw.integers(0, 5, 300).astype(np.int32)
    pair = [fill(empty, np.arange(300), lists, vectors) for fill in (filled, added)]
    found, wanted = (index.search(vectors[:9], 20) for index in pair)
    np.testing.assert_array_equal(found, wanted)


def test_the_codes_are_a_file_that_goes_with_the_index() -> None:
    draw = np.random.default_rng(0)
    empty, vectors = trained("IVF5,SQfp16"), draw.normal(size=(3000, WIDTH)).astype(np.float32)
    index = filled(empty, np.arange(3000), draw.integers(0, 5, 3000).astype(np.int32), vectors)
    address = int(faiss.rev_swig_ptr(index.invlists.get_codes(3), 1).ctypes.data)
    [line] = mapped_at(address)
    assert "(deleted)" in line
    del index
    assert line not in mapped_at(address)


def mapped_at(address: int) -> list[str]:
    """Return the lines of the mappings that hold an address of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return [line for line, (first, last) in zip(lines, ends, strict=True) if first <= address < last]
