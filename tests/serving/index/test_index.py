"""Indexes against brute force; what an index takes on a GPU, and the fallback where there is too little."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.serving.index.index import (
    AnnIndex,
    Device,
    ExactIndex,
    GpuFullError,
    gpu_bytes,
    is_halved,
    on_device,
    pick_gpu,
    room,
)

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
    monkeypatch.setattr("weir.serving.index.index.room", lambda: FLAT // 2)
    exact = on_device(built("Flat"), {}, "cpu").search(QUERIES, 10).rows
    halved = on_device(built("Flat"), {}, "gpu").search(QUERIES, 10).rows
    assert np.mean([len({*one} & {*other}) / 10 for one, other in zip(exact, halved, strict=True)]) > 0.95
    monkeypatch.setattr("weir.serving.index.index.room", lambda: 1)
    with pytest.raises(GpuFullError):
        on_device(built("Flat"), {}, "gpu")
    assert on_device(built("Flat"), {}, "auto").keep is None


def open_index(data: bytes, parameters: dict[str, int | float], device: Device) -> AnnIndex:
    return on_device(faiss.deserialize_index(np.frombuffer(data, np.uint8)), parameters, device)


def built_index(factory: str) -> bytes:
    index = faiss.index_factory(VECTORS.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    return faiss.serialize_index(index).tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 10_000))
def test_exact_search_is_the_brute_force_answer(items: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((items, 4)).astype(np.float32)
    queries = random.standard_normal((3, 4)).astype(np.float32)
    found = ExactIndex(vectors).search(queries, k)
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :k], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, found.rows, axis=1), found.scores, rtol=1e-4, atol=1e-5)


def test_large_batches_and_single_queries_agree() -> None:
    queries = np.random.default_rng(2).standard_normal((64, 12)).astype(np.float32)
    together = ExactIndex(VECTORS).search(queries, 7).rows
    alone = np.concatenate([ExactIndex(VECTORS).search(queries[i : i + 1], 7).rows for i in range(64)])
    np.testing.assert_array_equal(together, alone)


def test_search_among_some_rows_ranks_only_those() -> None:
    rows = np.array([250, 3, 77, 12])
    found = ExactIndex(VECTORS).search_among(QUERIES, 10, rows)
    expected = rows[np.argsort(-(QUERIES @ VECTORS[rows].T), axis=1)]
    np.testing.assert_array_equal(found.rows, expected)


def test_nothing_to_search_gives_nothing() -> None:
    assert ExactIndex(VECTORS[:0]).search(QUERIES, 3).rows.shape == (5, 0)
    assert ExactIndex(VECTORS).search_among(QUERIES, 3, np.empty(0, np.int64)).rows.shape == (5, 0)


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW16", "OPQ4_8,IVF8,Flat"])
def test_every_kind_of_index_finds_the_best(factory: str) -> None:
    parameters = {"nprobe": 8} if "IVF" in factory else {"efSearch": 200} if "HNSW" in factory else {}
    index = open_index(built_index(factory), parameters, "cpu")
    best = (QUERIES @ VECTORS.T).argmax(axis=1)
    if "OPQ" in factory:  # a rotation that also drops dimensions: near, not exact
        assert index.search(QUERIES, 100).rows.shape == (5, 100)
    else:
        np.testing.assert_array_equal(index.search(QUERIES, 3).rows[:, 0], best)


def test_nprobe_holds_for_one_search_only() -> None:
    index = open_index(built_index("IVF8,Flat"), {"nprobe": 1}, "cpu")
    exact = ExactIndex(VECTORS).search(QUERIES, 20).rows
    before = index.search(QUERIES, 20).rows
    assert (before != exact).any()
    np.testing.assert_array_equal(index.search(QUERIES, 20, nprobe=8).rows, exact)
    np.testing.assert_array_equal(index.search(QUERIES, 20).rows, before)


def test_nprobe_beyond_the_lists_visits_all_and_is_ignored_elsewhere() -> None:
    exact = ExactIndex(VECTORS).search(QUERIES, 20).rows
    np.testing.assert_array_equal(
        open_index(built_index("IVF8,Flat"), {}, "cpu").search(QUERIES, 20, 10_000).rows, exact
    )
    np.testing.assert_array_equal(open_index(built_index("Flat"), {}, "cpu").search(QUERIES, 20, 3).rows, exact)


def test_foreign_bytes_and_parameters_are_refused() -> None:
    with pytest.raises(RuntimeError):
        open_index(b"no index at all, but long enough to have a header", {}, "cpu")
    with pytest.raises(RuntimeError, match="nprobe"):
        open_index(built_index("Flat"), {"nprobe": 2}, "cpu")


def test_a_gpu_is_demanded_only_where_there_is_one() -> None:
    if getattr(faiss, "get_num_gpus", lambda: 0)():
        assert pick_gpu("gpu")
        assert pick_gpu("auto")
    else:
        with pytest.raises(ValueError, match="FAISS finds none"):
            pick_gpu("gpu")
        assert not pick_gpu("auto")
    assert not pick_gpu("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not getattr(faiss, "get_num_gpus", lambda: 0)(), reason="needs faiss-gpu and a CUDA device")
def test_the_gpu_finds_what_the_cpu_finds() -> None:
    on_cpu = open_index(built_index("IVF8,Flat"), {"nprobe": 4}, "cpu")
    on_gpu = open_index(built_index("IVF8,Flat"), {"nprobe": 4}, "gpu")
    np.testing.assert_array_equal(on_gpu.search(QUERIES, 10).rows, on_cpu.search(QUERIES, 10).rows)
    np.testing.assert_array_equal(on_gpu.search(QUERIES, 10, 8).rows, on_cpu.search(QUERIES, 10, 8).rows)


def test_a_device_has_limits_and_says_so() -> None:
    free, bound = (
        open_index(built_index("IVF8,Flat"), {"nprobe": 2}, "cpu"),
        open_index(built_index("IVF8,Flat"), {}, "cpu"),
    )
    bound.limit = 4
    assert free.reaches(10**6, 10**6)
    assert bound.reaches(4, 4)
    assert not bound.reaches(5, 1)
    assert not bound.reaches(1, 5)
    assert not bound.reaches(1, 10_000)  # there are eight lists
    with pytest.raises(ValueError, match="k = 5 or nprobe = 0 is above 4"):
        bound.search(QUERIES, 5)
    assert ExactIndex(VECTORS).reaches(10**9, 10**9)


@pytest.mark.gpu
@pytest.mark.skipif(not getattr(faiss, "get_num_gpus", lambda: 0)(), reason="needs faiss-gpu and a CUDA device")
def test_the_gpu_knows_its_limit() -> None:
    on_gpu = open_index(built_index("IVF8,Flat"), {"nprobe": 4}, "gpu")
    assert on_gpu.limit == 2048
    assert (on_gpu.lists, on_gpu.reaches(300, 8)) == (8, True)
