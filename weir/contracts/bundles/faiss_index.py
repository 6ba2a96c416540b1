"""Operations on FAISS indexes that trainer and server share. Kept apart because importing it needs FAISS."""

from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts.bundles.rows import BundleDelta

__all__ = [
    "append_lists",
    "apply_delta",
    "check_delta",
    "give_lists",
    "is_graph",
    "keep_places",
    "keeps_places",
    "takes_deltas",
    "widen_walks",
    "with_row_ids",
    "without_rows",
]

_faiss: Any = faiss  # its stubs lack these
_TABLE: Final = _faiss.DirectMap.Hashtable
_LEAST: Final = 64
_FOR_EACH: Final = 2
"""Least number of candidates of a graph walk, and candidates per wanted row. FAISS always keeps 16: such a walk ends
before it has found a thousand rows."""
_ROOM: Final = 8
"""Least spare room of a list in rows; larger lists get one spare row per `_ROOM` rows."""


def is_graph(index: Any) -> bool:
    """Return whether an index is an HNSW graph, of plain or transformed vectors."""
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return isinstance(inner, faiss.IndexHNSW)


def widen_walks(index: Any, k: int, at_least: int = 0) -> None:
    """Set `efSearch`, the candidates of a search in a graph index: enough to find `k` rows, at least `at_least`."""
    _faiss.ParameterSpace().set_index_parameter(index, "efSearch", max(_LEAST, at_least, _FOR_EACH * k))


def takes_deltas(index: Any) -> bool:
    """Return whether rows of an index can be replaced: a flat index, or IVF with plain lists and flat centroids."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexFlat):
        return True
    if not isinstance(index, faiss.IndexIVF) or index.invlists is None:
        return False
    lists, quantizer = faiss.downcast_InvertedLists(index.invlists), faiss.downcast_index(index.quantizer)
    return isinstance(lists, faiss.ArrayInvertedLists) and isinstance(quantizer, faiss.IndexFlat)


def with_row_ids(index: Any) -> Any:
    """Return a flat index as one with explicit row ids, which survive removals; other indexes have them already."""
    flat = faiss.downcast_index(index)
    if not isinstance(flat, faiss.IndexFlat):
        return index
    mapped = faiss.IndexIDMap(faiss.IndexFlat(flat.d, flat.metric_type))
    if flat.ntotal:
        mapped.add_with_ids(flat.reconstruct_n(0, flat.ntotal), np.arange(flat.ntotal))
    return mapped


def keep_places(index: Any) -> None:
    """Prepare an IVF index that `takes_deltas` for many deltas: each then costs only the rows it changes.

    The index records the places of its rows (38 bytes per row), and its lists get spare room: a full list doubles its
    memory with the next row, so a few changes would double the index.
    """
    if takes_deltas(index) and faiss.try_extract_index_ivf(index) is not None:
        _make_room(index)
        index.set_direct_map_type(_TABLE)


def _make_room(index: Any) -> None:
    """Copy the lists of an IVF index to lists with spare room."""
    old, new = index.invlists, _faiss.ArrayInvertedLists(index.nlist, index.code_size)
    for number in range(index.nlist):
        size = old.list_size(number)
        new.resize(number, size + max(_ROOM, size // _ROOM))
        if size:
            new.update_entries(number, 0, size, old.get_ids(number), old.get_codes(number))
        new.resize(number, size)
    give_lists(index, new)


def without_rows(index: Any) -> Any:
    """Return a copy of a trained IVF index with empty lists; the original may be a mapped file."""
    copy: Any = faiss.clone_index(index)
    # Replaced, not emptied: an emptied list keeps its memory.
    give_lists(copy, _faiss.ArrayInvertedLists(index.nlist, index.code_size))
    copy.ntotal = 0
    # Copied into memory: mapped parts, also the centroids, would crash the process when they grow.
    return _faiss.deserialize_index(_faiss.serialize_index(copy))


def give_lists(index: Any, lists: Any) -> None:
    """Replace the inverted lists of an IVF index, which owns the new ones from then on."""
    index.replace_invlists(lists, True)  # noqa: FBT003 - FAISS takes no keywords
    lists.this.disown()


def keeps_places(index: Any) -> bool:
    """Return whether an index records the places of its rows (`keep_places`), as clones of such an index do."""
    inverted = faiss.try_extract_index_ivf(index)
    return inverted is not None and inverted.direct_map.type == _TABLE


def check_delta(index: Any, delta: BundleDelta, lists: int | None = None) -> int:
    """Return the number of lists of an index after a delta, 0 for an index without lists; `lists` is the number before.

    Raises `ValueError` if the delta names no lists, or unknown lists, for an index that has lists.
    """
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is None:
        return 0
    after = (inverted.nlist if lists is None else lists) + (0 if delta.centroids is None else len(delta.centroids))
    if len(delta.rows) and (delta.lists is None or not ((delta.lists >= 0) & (delta.lists < after)).all()):
        raise ValueError(f"names no lists, or others than 0 to {after - 1}")
    return int(after)


def apply_delta(index: Any, delta: BundleDelta) -> None:
    """Apply a delta to an index in place; the index comes from `with_row_ids` or an earlier delta.

    Raises `ValueError` as `check_delta`, before any change, and FAISS's `RuntimeError` if the index cannot remove rows.
    """
    has_lists = check_delta(index, delta) > 0
    if has_lists and delta.centroids is not None:
        append_lists(index, delta.centroids)
    gone = np.concatenate([delta.removed, delta.rows])
    if len(gone):
        # IDSelectorArray looks the rows up, which needs their places; IDSelectorBatch scans all lists.
        selector = faiss.IDSelectorArray if keeps_places(index) else faiss.IDSelectorBatch
        index.remove_ids(selector(gone))
    if not len(delta.rows):
        return
    if not has_lists:
        index.add_with_ids(delta.vectors, delta.rows)
        return
    rows, lists = np.ascontiguousarray(delta.rows), np.ascontiguousarray(delta.lists)
    index.add_core(len(rows), faiss.swig_ptr(delta.vectors), faiss.swig_ptr(rows), faiss.swig_ptr(lists))


def append_lists(index: Any, centroids: npt.NDArray[np.float32]) -> None:
    """Append empty lists with these centroids (c, d) to an IVF index, leaving the other lists as they are."""
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    old, new = index.nlist, index.nlist + len(centroids)
    # FAISS has no call for it. A permutation moves a list and leaves an empty one: once list 0 has moved to place 0,
    # every further place that is given list 0 becomes empty.
    order = np.zeros(new, np.int64)
    order[:old] = np.arange(old)
    lists.nlist = new
    lists.permute_invlists(faiss.swig_ptr(order))
    index.quantizer.add(centroids)
    index.nlist = new
