import faiss
import numpy as np
import pytest

from weir.trainer.export.clusters import Assigned, Clusters, family
from weir.trainer.export.index import empty_index

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
