"""Copy-on-write search index of a bundle: a base index, plus a small index of the changed rows.

The newest, the promoted and the confirmed bundle are searched at the same time, and mostly build on each other. So an
index with lists is never copied: a version adds a small index of later rows, and excludes outdated rows from the
search. Both parts search the same lists, so together they find the same rows as one index, up to ties.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.contracts.bundle_delta import BundleDelta
from weir.contracts.graph_index import is_graph, widen_walks
from weir.contracts.index_delta import apply_delta, takes_deltas, with_row_ids, without_rows
from weir.contracts.layers import Layers
from weir.trainer.export.filling import filled

__all__ = ["Found", "ListSearch", "Searched", "searched", "searched_in"]

_faiss: Any = faiss  # its stubs lack these

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Found = tuple[Floats, IndexRows]
"""Scores (n, k), descending, and their rows, (n, k), -1 past the end."""


class Searched(Protocol):
    """Search index of one version."""

    def search(self, queries: Floats, k: int) -> Found:
        """Return the best `k` rows for each of the queries (n, d)."""

    def changed(self, delta: BundleDelta) -> "Searched":
        """Return the index after a delta, as `apply_delta`; this one is unchanged."""

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        """Return one FAISS index of the same rows, from the vectors of all rows (n, d) and the rows in use, `live`."""


def searched(index: Any) -> Searched:
    """Return the search index of a complete bundle."""
    has_lists = faiss.try_extract_index_ivf(index) is not None
    return ListSearch.of(index) if has_lists and takes_deltas(index) else _Copied(index)


def searched_in(path: Path) -> Searched:
    """Return the search index in a file of a complete bundle, with memory-mapped lists."""
    index = searched(_faiss.read_index(str(path), _faiss.IO_FLAG_MMAP_IFC))
    # An index that is copied for changes must not be mapped: its copies would be too, and FAISS aborts when they grow.
    return index if isinstance(index, ListSearch) else searched(_faiss.read_index(str(path)))


@dataclass(frozen=True, eq=False)
class _Copied:
    """Any index; a change copies it."""

    index: Any

    def search(self, queries: Floats, k: int) -> Found:
        if is_graph(self.index):
            widen_walks(self.index, k)
        scores, rows = self.index.search(queries, k)
        return scores, IndexRows(rows)

    def changed(self, delta: BundleDelta) -> Self:
        index = with_row_ids(faiss.clone_index(with_row_ids(self.index)))
        apply_delta(index, delta)
        return type(self)(index)

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        # Only a flat index accepts deltas and has no lists.
        index: Any = faiss.IndexFlat(self.index.d, self.index.metric_type)
        if len(live) < len(vectors):
            index = with_row_ids(index)
            index.add_with_ids(vectors[live], live)
        else:
            index.add(vectors[live])
        return index


@dataclass(frozen=True, eq=False)
class ListSearch:
    """An IVF index, `base`, and an IVF index `over` of later rows, with all lists, including those of repairs.

    The bit mask `outdated` excludes rows of the base. Both indexes are immutable.
    """

    base: Any
    over: Any
    outdated: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, index: Any) -> Self:
        """Return an index without changes."""
        return cls(index, without_rows(index), np.zeros(-(-index.ntotal // 8), np.uint8))

    def empty(self) -> Any:
        """Return a trained index with all lists and no items."""
        return without_rows(self.over)

    def search(self, queries: Floats, k: int) -> Found:
        """Return the best `k` rows for each of the queries (n, d)."""
        scores, lists = self.over.quantizer.search(queries, self.over.nprobe)
        in_base = np.where(lists < self.base.nlist, lists, -1)
        current = _faiss.IDSelectorNot(_faiss.IDSelectorBitmap(self.outdated))
        only_current = _faiss.SearchParametersIVF(sel=current, nprobe=self.over.nprobe)
        parts = [
            _search_lists(self.over, queries, k, (lists, scores)),
            _search_lists(self.base, queries, k, (in_base, scores), only_current),
        ]
        both, rows = (np.concatenate(one, axis=1) for one in zip(*parts, strict=True))
        best = np.argsort(-both, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(both, best, 1), IndexRows(np.take_along_axis(rows, best, 1))

    def changed(self, delta: BundleDelta) -> Self:
        """Return the index after a delta; raises as `apply_delta`."""
        over: Any = faiss.clone_index(self.over)
        apply_delta(over, delta)
        rows, outdated = np.concatenate([delta.rows, delta.removed]), self.outdated.copy()
        old = rows[rows < 8 * len(outdated)]
        np.bitwise_or.at(outdated, old // 8, np.left_shift(1, old % 8).astype(np.uint8))
        return type(self)(self.base, over, outdated)

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        """Return one index of the same rows in the same lists."""
        return filled(self.empty(), live, self.lists_of(len(vectors))[live], vectors)

    def lists_of(self, rows: int) -> npt.NDArray[np.int32]:
        """Return the list of each of `rows` rows, -1 for rows that are not in the index."""
        lists = np.full(rows, -1, np.int32)
        _note_lists(lists, self.base)
        lists[np.flatnonzero(np.unpackbits(self.outdated, bitorder="little")[:rows])] = -1
        _note_lists(lists, self.over)
        return lists


def _search_lists(
    index: Any, queries: Floats, k: int, coarse: tuple[npt.NDArray[np.int64], Floats], parameters: Any = None
) -> Found:
    """Return the best `k` rows for queries (n, d) in given lists (n, nprobe) of an IVF index, with their coarse scores.

    FAISS's own wrapper does not accept search parameters.
    """
    scores, rows = np.empty((len(queries), k), np.float32), IndexRows(np.empty((len(queries), k), np.int64))
    arrays = map(_faiss.swig_ptr, (np.ascontiguousarray(queries, np.float32), *coarse, scores, rows))
    at, lists_at, coarse_at, scores_at, rows_at = arrays
    index.search_preassigned_c(len(queries), at, k, lists_at, coarse_at, scores_at, rows_at, False, parameters)  # noqa: FBT003
    return scores, rows


def _note_lists(lists: npt.NDArray[np.int32], index: Any) -> None:
    """Set the list of each row in an IVF index."""
    for number in range(index.nlist):
        if size := index.invlists.list_size(number):
            lists[faiss.rev_swig_ptr(index.invlists.get_ids(number), size)] = number
