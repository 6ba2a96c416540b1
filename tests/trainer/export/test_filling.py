from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.layers import Layers
from weir.trainer.export.filling import filled
from weir.trainer.export.index import empty_index

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
        with patch("weir.trainer.export.filling._BLOCK", 7):
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
