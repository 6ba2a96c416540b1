import io

import faiss
import numpy as np
import pytest

from weir.trainer.export.index import check_index, empty_index, factory, info_of, least_items, write_index


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
