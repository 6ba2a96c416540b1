import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import ItemKeys
from weir.contracts.bundle_delta import BundleDelta
from weir.contracts.index_delta import apply_delta, with_row_ids
from weir.contracts.layers import Layers
from weir.serving.index import on_device
from weir.trainer.export.index import empty_index
from weir.trainer.export.searched import ListSearch, Searched, searched, searched_in

WIDTH = 6


def trained(kind: str, draw: np.random.Generator, count: int) -> tuple[Any, np.ndarray]:
    vectors = draw.normal(size=(count, WIDTH)).astype(np.float32)
    index = empty_index(WIDTH, kind)
    index.train(vectors)
    index.add(vectors)
    return index, vectors


def stored(index: Any) -> Searched:
    """Return an index as it is searched in its file, which is gone by then."""
    with tempfile.NamedTemporaryFile() as file:
        faiss.write_index(index, file.name)
        return searched_in(Path(file.name))


def delta_of(draw: np.random.Generator, live: set[int], size: int, lists: int, *, repair: bool) -> BundleDelta:
    """Return a delta that moves, adds and removes some rows, and appends lists, which get some of them."""
    known = draw.permutation(sorted(live))
    gone, moved = np.split(known[: len(known) // 3], [len(known) // 9])
    rows = np.concatenate([moved, size + np.arange(draw.integers(0, 4))]).astype(np.int64)
    centroids = draw.normal(size=(2, WIDTH)).astype(np.float32) if repair else None
    return BundleDelta(
        rows=rows,
        ids=np.array([], object),
        keys=ItemKeys(rows),
        popularity=np.zeros(len(rows)),
        vectors=draw.normal(size=(len(rows), WIDTH)).astype(np.float32),
        embeddings=np.zeros((0, WIDTH), np.float32),
        removed=gone.astype(np.int64),
        lists=draw.integers(0, lists + 2 * repair, len(rows)) if lists else None,
        centroids=centroids,
    )


@pytest.mark.parametrize("kind", ["Flat", "IVF5,Flat", "IVF5,SQfp16"])
@pytest.mark.parametrize("opened", [searched, stored])
@given(seed=st.integers(0, 2**32 - 1), repairs=st.lists(st.booleans(), max_size=4), nprobe=st.integers(1, 5))
def test_a_chain_finds_what_one_index_finds_and_no_version_changes(
    kind: str, opened: Callable[[Any], Searched], seed: int, repairs: list[bool], nprobe: int
) -> None:
    """The oracle is one index, to which FAISS adds and from which it removes rows."""
    draw, count = np.random.default_rng(seed), 40
    index, vectors = trained(kind, draw, count)
    lists = getattr(index, "nlist", 0)
    if lists:
        index.nprobe = nprobe
    whole, mine, live = with_row_ids(faiss.clone_index(index)), opened(index), set(range(count))
    queries = draw.normal(size=(7, WIDTH)).astype(np.float32)
    versions = [(mine, mine.search(queries, 9))]
    for repair in repairs:
        delta = delta_of(draw, live, max(live) + 1, lists, repair=repair and lists > 0)
        lists += 0 if delta.centroids is None else len(delta.centroids)
        live = (live - set(delta.removed.tolist())) | set(delta.rows.tolist())
        apply_delta(whole, delta)
        mine = mine.changed(delta)
        versions.append((mine, mine.search(queries, 9)))
        for found, wanted in zip(mine.search(queries, 9), whole.search(queries, 9), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        vectors = np.concatenate([vectors, np.zeros((max(max(live) + 1 - len(vectors), 0), WIDTH), np.float32)])
        vectors[delta.rows] = delta.vectors
        one = mine.merged(Layers.of(vectors), np.array(sorted(live)))
        for found, wanted in zip(one.search(queries, 9), whole.search(queries, 9), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        if isinstance(mine, ListSearch):
            assert lists_in(one, 2 * count) == lists_in(whole, 2 * count)
            assert mine.lists_of(2 * count).tolist() == lists_in(whole, 2 * count)
            assert (mine.empty().ntotal, mine.empty().nlist) == (0, lists)
    for version, found in versions:
        np.testing.assert_array_equal(version.search(queries, 9)[1], found[1])


def lists_in(index: Any, rows: int) -> list[int]:
    """Return the list of each row, -1 without, from what FAISS says of each list."""
    found = [-1] * rows
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), size) if size else []
        for row in ids:
            found[row] = number
    return found


@pytest.mark.parametrize("opened", [searched, stored])
def test_a_graph_is_walked_as_widely_as_a_server_does(opened: Callable[[Any], Searched]) -> None:
    draw = np.random.default_rng(0)
    index, _ = trained("HNSW8", draw, 2000)
    queries = draw.normal(size=(20, WIDTH)).astype(np.float32)
    plain = index.search(queries, 500)[1]
    found = opened(index).search(queries, 500)[1]
    served = on_device(index, {}, "cpu").search(queries, 500).rows
    np.testing.assert_array_equal(found, served)
    assert (found >= 0).all()
    assert (plain < 0).any()
