"""What an index takes on a GPU, and what is done where there is too little; the GPU itself where there is one."""

import faiss
import numpy as np
import pytest

from weir.serving.gpu import GpuFullError, gpu_bytes, is_halved, room
from weir.serving.index import on_device

VECTORS = np.random.default_rng(0).standard_normal((300, 12)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
ROWS, DIMENSION = VECTORS.shape
FLAT = ROWS * DIMENSION * 4

needs_gpu = pytest.mark.skipif(
    not getattr(faiss, "get_num_gpus", lambda: 0)(), reason="needs faiss-gpu and a CUDA device"
)


def built(factory: str) -> faiss.Index:
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    return index


def test_sizes_are_those_of_what_is_stored() -> None:
    flat, lists, halves = built("Flat"), built("IVF8,Flat"), built("IVF8,SQfp16")
    assert gpu_bytes(flat) == FLAT
    assert gpu_bytes(flat, half=True) == FLAT // 2
    centroids = 8 * DIMENSION * 4
    assert gpu_bytes(lists) == gpu_bytes(lists, half=True) == FLAT + 8 * ROWS + centroids
    assert gpu_bytes(halves) == FLAT // 2 + 8 * ROWS + centroids


def test_vectors_are_halved_only_where_they_have_no_room_whole() -> None:
    flat = built("Flat")
    assert not is_halved(flat, None)
    assert not is_halved(flat, FLAT)
    assert is_halved(flat, FLAT - 1)
    assert is_halved(flat, FLAT // 2)
    with pytest.raises(GpuFullError, match=r"it takes .* MiB at least, and .* may be used on the GPU now"):
        is_halved(flat, FLAT // 2 - 1)
    with pytest.raises(GpuFullError):
        is_halved(built("IVF8,Flat"), FLAT)


def test_without_cuda_nobody_knows_the_room() -> None:
    if not getattr(faiss, "get_num_gpus", lambda: 0)():
        assert room() is None


@pytest.mark.gpu
@needs_gpu
def test_an_index_takes_room_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    before = room()
    assert before is not None
    rows = np.random.default_rng(0).normal(size=(1 << 20, 64)).astype(np.float32)
    large = faiss.IndexFlatIP(64)
    large.add(rows)
    on_gpu = on_device(large, {}, "gpu")
    after = room()
    assert after is not None
    assert before - after >= 0.9 * gpu_bytes(large)
    del on_gpu
    monkeypatch.setattr("weir.serving.index.room", lambda: FLAT // 2)
    exact = on_device(built("Flat"), {}, "cpu").search(QUERIES, 10).rows
    halved = on_device(built("Flat"), {}, "gpu").search(QUERIES, 10).rows
    assert np.mean([len({*one} & {*other}) / 10 for one, other in zip(exact, halved, strict=True)]) > 0.95
    monkeypatch.setattr("weir.serving.index.room", lambda: 1)
    with pytest.raises(GpuFullError):
        on_device(built("Flat"), {}, "gpu")
    assert on_device(built("Flat"), {}, "auto").keep is None
