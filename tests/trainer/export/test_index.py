import faiss
import numpy as np
import pytest

from trainer.export.index import build_index, factory


def vectors(n: int, d: int = 16) -> np.ndarray:
    raw = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def test_the_type_follows_the_size_unless_it_is_forced() -> None:
    assert factory(49_999, "auto") == "Flat"
    assert factory(50_000, "auto") == "IVF894,SQfp16"
    assert factory(1_000_000, "auto") == "IVF4000,SQfp16"
    assert factory(10, "HNSW32") == "HNSW32"


def test_a_flat_index_is_exact() -> None:
    items = vectors(300)
    data, info = build_index(items, "auto", 32)
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    assert (info.type, info.parameters, index.ntotal, index.d) == ("Flat", {}, 300, 16)
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    queries = vectors(20)[::-1].copy()
    _, found = index.search(queries, 5)
    assert found.tolist() == np.argsort(-(queries @ items.T), axis=1)[:, :5].tolist()


def test_inverted_lists_find_nearly_all_and_know_their_probes() -> None:
    items = vectors(3000)
    data, info = build_index(items, "IVF32,SQfp16", 16)
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    assert (info.type, info.parameters) == ("IVF32,SQfp16", {"nprobe": 16})
    _, found = index.search(items[:200], 1)
    assert (found[:, 0] == np.arange(200)).mean() > 0.99
    assert build_index(items, "IVF32,SQfp16", 99)[1].parameters == {"nprobe": 32}
    assert build_index(items, "IVF32,SQfp16", 16)[0] == data


def test_a_type_that_cannot_be_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Banana"):
        build_index(vectors(10), "Banana7", 1)
