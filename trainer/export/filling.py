"""Fill an IVF index with all items for writing; its codes are a memory-mapped file.

In memory, codes of 64 dimensions would take 128 bytes per item. Rows come in order, so each list is written
sequentially.
"""

from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts.index_delta import give_lists
from weir.contracts.layers import Layers
from weir.trainer.step.spool import Spool

__all__ = ["filled"]

_faiss: Any = faiss  # its stubs lack these
_BLOCK: Final = 1 << 16
"""Rows encoded at a time, so that copies of their vectors stay small."""

_CODES_ONLY: Final = (_faiss.IndexIVFFlat, _faiss.IndexIVFScalarQuantizer, _faiss.IndexIVFPQ)
"""Indexes that store only the result of `encode_vectors`; others may store more when a vector is added."""

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32] | Layers[np.float32]
Lists = npt.NDArray[np.int32]


def filled(empty: Any, rows: Ints, lists: Lists, vectors: Vectors) -> Any:
    """Return a copy of `empty`, a trained index without items, with `rows` (n,), ascending, in `lists` (n,).

    `vectors` (..., d) are the vectors of all rows. The index may be searched and written, but not cloned or changed.
    """
    index: Any = faiss.clone_index(empty)
    if type(index) in _CODES_ONLY:
        _fill_from_disk(index, rows, lists, vectors)
        return index
    for first in range(0, len(rows), _BLOCK):
        some = rows[first : first + _BLOCK]
        added = (vectors[some], some, lists[first : first + _BLOCK].astype(np.int64))  # FAISS does not keep them alive
        index.add_core(len(some), *map(_faiss.swig_ptr, added))
    return index


def _fill_from_disk(index: Any, rows: Ints, lists: Lists, vectors: Vectors) -> None:
    sizes = np.bincount(lists, minlength=index.nlist)
    ids, codes = _room(len(rows), 8).view(np.int64), _room(len(rows), index.code_size)
    following = np.cumsum(sizes) - sizes
    for first in range(0, len(rows), _BLOCK):
        some, named = rows[first : first + _BLOCK], lists[first : first + _BLOCK].astype(np.int64)
        places = _places(named, following)
        ids[places, 0], codes[places] = some, _encoded(index, vectors[some], named)
        following += np.bincount(named, minlength=index.nlist)
    _give(index, sizes, ids, codes)


def _room(count: int, width: int) -> Codes:
    """Return `count` preallocated lines on disk, which can be written in any order."""
    spool, block = Spool(width, np.uint8), np.zeros((_BLOCK, width), np.uint8)
    for first in range(0, count, _BLOCK):
        spool.append(block[: count - first])
    return np.asarray(spool.finish())


def _places(lists: Ints, following: Ints) -> Ints:
    """Return the positions of rows in these `lists` (n,); each list is filled from its `following` position."""
    order = np.argsort(lists, kind="stable")
    ordered, places = lists[order], np.empty_like(order)
    places[order] = following[ordered] + np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return places


def _encoded(index: Any, vectors: npt.NDArray[np.float32], lists: Ints) -> Codes:
    codes = np.empty((len(vectors), index.code_size), np.uint8)
    index.encode_vectors(len(vectors), *map(_faiss.swig_ptr, (vectors, lists, codes)))
    return codes


def _give(index: Any, sizes: Ints, ids: Ints, codes: Codes) -> None:
    """Set the lists of these sizes to ids (n, 1), which FAISS copies, and codes (n, ...), which are used in place."""
    lists, views = _faiss.ArrayInvertedLists(index.nlist, 0), _faiss.MaybeOwnedVectorUInt8Vector()
    nobody = _faiss.MaybeOwnedVectorUInt8()
    for number, (size, last) in enumerate(zip(sizes.tolist(), np.cumsum(sizes).tolist(), strict=True)):
        own = codes[last - size : last]
        lists.add_entries(number, size, *map(_faiss.swig_ptr, (ids[last - size : last], own)))
        views.push_back(_faiss.MaybeOwnedVectorUInt8.create_view(_faiss.swig_ptr(own), own.size, nobody.owner))
    lists.codes.swap(views)
    lists.code_size = index.code_size
    give_lists(index, lists)
    index.ntotal, index.referenced_objects = len(ids), [codes]
