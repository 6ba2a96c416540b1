"""What FAISS does with lists that grow, move and are looked up; it promises none of this."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from weir.contracts.index_delta import append_lists, keep_places, keeps_places, without_rows

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
