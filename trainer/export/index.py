"""The FAISS index of a bundle: choose its kind, train and repair the lists of an IVF index, fill and write it.

Below 50,000 items a flat index answers in well under a millisecond and is exact. Above, an IVF index with 16-bit
vectors is used: about 4 sqrt(n) lists balance the search for lists against the search within them. The centroids of the
lists are kept between exports (`weir.trainer.export.planner`).

Centroids have length 1 (FAISS trains them so for inner products), so the score of an item with its centroid, divided
by the item's length, is their cosine. It measures how well the list fits the item.

An IVF index is filled through a file on disk: in memory, the codes of vectors of 64 dimensions would take 128 bytes per
item.
"""

import math
import re
import time
from dataclasses import dataclass
from typing import IO, Any, Final, Self

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexFit, IndexInfo
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.faiss_index import append_lists, give_lists
from weir.trainer.state.assigner import Assigned, assign, lengths_of
from weir.trainer.step.shuffling import Spool

__all__ = [
    "Assigned",
    "Clusters",
    "check_index",
    "empty_index",
    "factory",
    "family",
    "filled",
    "info_of",
    "least_items",
    "write_index",
]


_faiss: Any = faiss  # its stubs lack the writer

_BLOCK: Final = 1 << 16
"""Rows processed at a time, so that copies of their vectors stay small."""

_CODES_ONLY: Final = (_faiss.IndexIVFFlat, _faiss.IndexIVFScalarQuantizer, _faiss.IndexIVFPQ)
"""Indexes that store only the result of `encode_vectors`; others may store more when a vector is added."""

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32] | Layers[np.float32]
Lists = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_UNFIT: Final = 0.05
"""Quantile of the cosines at training; items below its value fit badly."""

_REPAIR_LISTS: Final = (64, 400)
"""Fewest and most lists that one repair appends."""

_ITEMS_PER_LIST: Final = 8
"""Badly fitting items per appended list."""

_FLAT_BELOW: Final = 50_000
"""Number of items below which the index is flat."""

_OPQ_CODES: Final = 256
"""Codes of the product quantiser by which FAISS trains a rotation (OPQ), whatever index follows it."""


def filled(empty: Any, rows: Ints, lists: Lists, vectors: Vectors) -> Any:
    """Return a copy of a trained index without items, filled with rows in given lists.

    The result may be searched and written, but not cloned or changed.

    Parameters
    ----------
    empty
        The trained index.
    rows
        Index rows to add, (n,), ascending.
    lists
        The list of each row, (n,).
    vectors
        Vectors (m, d) of all index rows, read at `rows`.
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
    """Fill an IVF index whose class is in `_CODES_ONLY`, with codes in a file on disk; parameters as in `filled`."""
    sizes = np.bincount(lists, minlength=index.nlist)
    ids, codes = _array_on_disk(len(rows), 8).view(np.int64), _array_on_disk(len(rows), index.code_size)
    following = np.cumsum(sizes) - sizes
    for first in range(0, len(rows), _BLOCK):
        some, named = rows[first : first + _BLOCK], lists[first : first + _BLOCK].astype(np.int64)
        places = _positions(named, following)
        ids[places, 0], codes[places] = some, _encoded(index, vectors[some], named)
        following += np.bincount(named, minlength=index.nlist)
    _set_lists(index, sizes, ids, codes)


def _array_on_disk(count: int, width: int) -> Codes:
    """Return an array (count, width) in a file on disk, which can be written in any order."""
    spool, block = Spool(width, np.uint8), np.zeros((_BLOCK, width), np.uint8)
    for first in range(0, count, _BLOCK):
        spool.append(block[: count - first])
    return np.asarray(spool.finish())


def _positions(lists: Ints, following: Ints) -> Ints:
    """Return the positions (n,) at which rows of these `lists` (n,) are stored.

    `following` (lists,) is the next free position of each list.
    """
    order = np.argsort(lists, kind="stable")
    ordered, places = lists[order], np.empty_like(order)
    places[order] = following[ordered] + np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return places


def _encoded(index: Any, vectors: npt.NDArray[np.float32], lists: Ints) -> Codes:
    """Return the codes of vectors (n, d) in the given lists (n,)."""
    codes = np.empty((len(vectors), index.code_size), np.uint8)
    index.encode_vectors(len(vectors), *map(_faiss.swig_ptr, (vectors, lists, codes)))
    return codes


def _set_lists(index: Any, sizes: Ints, ids: Ints, codes: Codes) -> None:
    """Set the content of all lists, with these `sizes`, from ids (n, 1) and codes (n, width) in the order of the lists.

    FAISS copies the ids, but uses the codes in place.
    """
    lists, views = _faiss.ArrayInvertedLists(index.nlist, 0), _faiss.MaybeOwnedVectorUInt8Vector()
    unowned = _faiss.MaybeOwnedVectorUInt8()
    for number, (size, last) in enumerate(zip(sizes.tolist(), np.cumsum(sizes).tolist(), strict=True)):
        own = codes[last - size : last]
        lists.add_entries(number, size, *map(_faiss.swig_ptr, (ids[last - size : last], own)))
        views.push_back(_faiss.MaybeOwnedVectorUInt8.create_view(_faiss.swig_ptr(own), own.size, unowned.owner))
    lists.codes.swap(views)
    lists.code_size = index.code_size
    give_lists(index, lists)
    index.ntotal, index.referenced_objects = len(ids), [codes]


def family(kind: str) -> str:
    """Return a FAISS factory string without the number of lists, for example ``IVF,SQfp16``."""
    return re.sub(r"^IVF\d+", "IVF", kind)


@dataclass(frozen=True, eq=False)
class Clusters:
    """A trained IVF index without items (`empty`), its factory string (`kind`), and how well its lists `fit`."""

    kind: str
    empty: Any
    fit: IndexFit

    @classmethod
    def trained(cls, empty: Any, kind: str, vectors: Floats) -> tuple[Self, Assigned]:
        """Train an `empty` index on vectors (n, d), which takes minutes for millions.

        Returns the trained index and the lists of the vectors.
        """
        empty.train(vectors)
        fit = IndexFit(trained_at=time.time(), trained_items=len(vectors), trained_lists=empty.nlist, cosine=0.0)
        assigned = cls(kind, empty, fit).assign(vectors)
        cosine = float(np.quantile(assigned.cosines, _UNFIT))
        return cls(kind, empty, fit.model_copy(update={"cosine": cosine})), assigned

    @property
    def lists(self) -> int:
        """Number of lists."""
        return int(self.empty.nlist)

    def centroids(self) -> Floats:
        """Return the centroids, (lists, d)."""
        centroids: Floats = self.empty.quantizer.reconstruct_n(0, self.lists)
        return centroids

    def assign(self, vectors: Floats, chosen: npt.NDArray[np.int64] | None = None) -> Assigned:
        """Return the nearest list of each vector (n, d), or only of the vectors at the indices `chosen` (m,)."""
        return assign(self.empty.quantizer, vectors, chosen)

    def measured(self, vectors: Floats, lists: npt.NDArray[np.int32]) -> Assigned:
        """Return the given `lists` (n,) of vectors (n, d), with the cosine of each vector and its list's centroid."""
        centroids, cosines = self.centroids(), np.empty(len(vectors), np.float32)
        for first in range(0, len(vectors), _BLOCK):
            at = slice(first, first + _BLOCK)
            cosines[at] = np.einsum("nd,nd->n", vectors[at], centroids[lists[at]]) / lengths_of(vectors[at])
        return Assigned(lists, cosines)

    def filled(self, vectors: Floats, lists: npt.NDArray[np.int32]) -> Any:
        """Return an index with vectors (n, d) in the given lists (n,), as rows 0 to n - 1; see `filled`."""
        return filled(self.empty, np.arange(len(vectors)), lists, vectors)

    def repaired(self, vectors: Floats, assigned: Assigned) -> tuple["Clusters", Assigned] | None:
        """Append lists for badly fitting vectors, and move each of the vectors (n, d) that fits a new list better.

        Returns the new clusters and the lists of all vectors; None if too few vectors fit badly.
        """
        unfit = np.flatnonzero(assigned.cosines < self.fit.cosine)
        least, most = _REPAIR_LISTS
        if len(unfit) < least * _ITEMS_PER_LIST:
            return None
        count = min(max(len(unfit) // _ITEMS_PER_LIST // _ITEMS_PER_LIST, least), most)
        means: Any = faiss.Kmeans(vectors.shape[1], count, spherical=True, seed=1, min_points_per_centroid=1)
        means.train(vectors[unfit])
        added = faiss.IndexFlatIP(vectors.shape[1])
        added.add(means.centroids)
        better = assign(added, vectors)
        moves = better.cosines > assigned.cosines
        lists = np.where(moves, better.lists + np.int32(self.lists), assigned.lists)
        fit = self.fit.model_copy(update={"repairs": self.fit.repairs + 1})
        return self._with_centroids(means.centroids, fit), Assigned(lists, np.maximum(better.cosines, assigned.cosines))

    def _with_centroids(self, centroids: Floats, fit: IndexFit) -> "Clusters":
        """Return the clusters with appended `centroids` (c, d), and another `fit`."""
        empty: Any = faiss.clone_index(self.empty)
        append_lists(empty, centroids)
        return Clusters(re.sub(r"^IVF\d+", f"IVF{empty.nlist}", self.kind), empty, fit)


def factory(items: int, setting: str) -> str:
    """Return the FAISS factory string for a number of items; `setting` is a factory string, or ``auto``."""
    if setting != "auto":
        return setting
    return "Flat" if items < _FLAT_BELOW else f"IVF{round(4 * math.sqrt(items))},SQfp16"


def empty_index(dimension: int, kind: str) -> Any:
    """Return an untrained FAISS index for inner products; `kind` is its factory string.

    Raises
    ------
    RuntimeError
        From FAISS, for an unknown factory string.
    """
    return faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)


def check_index(setting: str, dimension: int) -> None:
    """Raise `ValueError` if FAISS does not accept the setting `index` for vectors of this dimension."""
    try:
        empty_index(dimension, factory(1, setting))
    except RuntimeError as error:
        raise ValueError(
            f"index = {setting}: FAISS makes no such index of vectors of tower.dimension = {dimension} numbers; "
            "expected auto or a factory string, such as Flat, IVF1024,SQfp16 or HNSW32"
        ) from error


def least_items(index: Any) -> int:
    """Return the least number of items with which an index can be trained: as many as lists and as quantiser codes."""
    inverted, inner = faiss.try_extract_index_ivf(index), faiss.downcast_index(index)
    counts = [1 if inverted is None else int(inverted.nlist)]
    while isinstance(inner, faiss.IndexPreTransform):
        chain: Any = inner.chain
        before = [_faiss.downcast_VectorTransform(chain.at(number)) for number in range(chain.size())]
        counts += [_OPQ_CODES for transform in before if isinstance(transform, _faiss.OPQMatrix)]
        inner = faiss.downcast_index(inner.index)
    stored = faiss.downcast_index(inner.storage) if isinstance(inner, faiss.IndexHNSW) else inner
    return max([*counts, stored.pq.ksub] if hasattr(stored, "pq") else counts)


def info_of(index: Any, kind: str, nprobe: int, fit: IndexFit | None = None) -> IndexInfo:
    """Return the description of an index for the manifest, and set the `nprobe` of an IVF index."""
    parameters: dict[str, int | float] = {}
    if "IVF" in kind:
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = min(nprobe, int(inverted.nlist))
        parameters["nprobe"] = int(inverted.nprobe)
    return IndexInfo(type=kind, parameters=parameters, fit=fit)


def write_index(index: Any, file: IO[bytes]) -> None:
    """Write an index to a file, block by block, in the format of FAISS."""
    _faiss.write_index(index, _faiss.PyCallbackIOWriter(file.write))
