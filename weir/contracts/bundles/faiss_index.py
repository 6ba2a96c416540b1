"""What trainer and server share of FAISS indexes. Importing it needs FAISS, so `contracts` itself does not."""

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

_LEAST: Final = 64
_FOR_EACH: Final = 2
"""Rows that a walk keeps as candidates, and how many for each row that is wanted. FAISS keeps 16 whatever is wanted:
such a walk ends before it has found a thousand rows."""


def is_graph(index: Any) -> bool:
    """Say whether an index is searched by walks through a graph (HNSW), of vectors as they are or transformed."""
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return isinstance(inner, faiss.IndexHNSW)


def widen_walks(index: Any, k: int, at_least: int = 0) -> None:
    """Let the next walks through the graph of an index find `k` rows, with `at_least` so many candidates."""
    _faiss.ParameterSpace().set_index_parameter(index, "efSearch", max(_LEAST, at_least, _FOR_EACH * k))


_TABLE: Final = _faiss.DirectMap.Hashtable
_ROOM: Final = 8
"""Rows for which a list gets spare room, at least; and one for so many that it holds."""


def takes_deltas(index: Any) -> bool:
    """Say whether rows of an index can be replaced one by one: it is flat, or has plain lists and flat centroids."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexFlat):
        return True
    if not isinstance(index, faiss.IndexIVF) or index.invlists is None:
        return False
    lists, quantizer = faiss.downcast_InvertedLists(index.invlists), faiss.downcast_index(index.quantizer)
    return isinstance(lists, faiss.ArrayInvertedLists) and isinstance(quantizer, faiss.IndexFlat)


def with_row_ids(index: Any) -> Any:
    """Return a flat index as one in which rows keep their numbers, whatever is removed; others do already."""
    flat = faiss.downcast_index(index)
    if not isinstance(flat, faiss.IndexFlat):
        return index
    mapped = faiss.IndexIDMap(faiss.IndexFlat(flat.d, flat.metric_type))
    if flat.ntotal:
        mapped.add_with_ids(flat.reconstruct_n(0, flat.ntotal), np.arange(flat.ntotal))
    return mapped


def keep_places(index: Any) -> None:
    """Make an index ready for many changes, if it has lists that take deltas: they then cost what they change.

    It notes where its rows are, 38 bytes each, and its lists get spare room: a full list takes twice its memory as soon
    as a row comes, so that a few changes would double the index.
    """
    if takes_deltas(index) and faiss.try_extract_index_ivf(index) is not None:
        _make_room(index)
        index.set_direct_map_type(_TABLE)


def _make_room(index: Any) -> None:
    old, new = index.invlists, _faiss.ArrayInvertedLists(index.nlist, index.code_size)
    for number in range(index.nlist):
        size = old.list_size(number)
        new.resize(number, size + max(_ROOM, size // _ROOM))
        if size:
            new.update_entries(number, 0, size, old.get_ids(number), old.get_codes(number))
        new.resize(number, size)
    give_lists(index, new)


def without_rows(index: Any) -> Any:
    """Return a copy of a trained index with lists, but without a row in them; what it copies may be a mapped file."""
    copy: Any = faiss.clone_index(index)
    # Not emptied: lists keep the memory of what they have held.
    give_lists(copy, _faiss.ArrayInvertedLists(index.nlist, index.code_size))
    copy.ntotal = 0
    # What is mapped, its centroids too, ends the process when it grows.
    return _faiss.deserialize_index(_faiss.serialize_index(copy))


def give_lists(index: Any, lists: Any) -> None:
    """Let an IVF index have other inverted lists, which it owns from then on."""
    index.replace_invlists(lists, True)  # noqa: FBT003 - FAISS takes no keywords
    lists.this.disown()


def keeps_places(index: Any) -> bool:
    """Say whether `keep_places` had an effect; a clone of such an index keeps places, too."""
    inverted = faiss.try_extract_index_ivf(index)
    return inverted is not None and inverted.direct_map.type == _TABLE


def check_delta(index: Any, delta: BundleDelta, lists: int | None = None) -> int:
    """Return how many lists an index has after a delta, 0 where it has none; `lists`: so many before.

    Raises `ValueError` where the delta names no lists for an index that has lists, or lists that there are not.
    """
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is None:
        return 0
    after = (inverted.nlist if lists is None else lists) + (0 if delta.centroids is None else len(delta.centroids))
    if len(delta.rows) and (delta.lists is None or not ((delta.lists >= 0) & (delta.lists < after)).all()):
        raise ValueError(f"names no lists, or others than 0 to {after - 1}")
    return int(after)


def apply_delta(index: Any, delta: BundleDelta) -> None:
    """Change an index in place: `with_row_ids` made it, or a delta was applied before.

    Raises
    ------
    ValueError
        From `check_delta`; nothing is changed then.
    RuntimeError
        From FAISS, for an index of which no row can be removed.
    """
    has_lists = check_delta(index, delta) > 0
    if has_lists and delta.centroids is not None:
        append_lists(index, delta.centroids)
    gone = np.concatenate([delta.removed, delta.rows])
    if len(gone):
        # One looks the rows up where the index keeps their places, which the other cannot; without, it reads all lists.
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
    """Append empty lists with these centroids (c, d) to an IVF index; what is in the other lists is not touched."""
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    old, new = index.nlist, index.nlist + len(centroids)
    # FAISS has no call for it. A permutation moves lists and leaves an empty one behind: what takes list 0 after list 0
    # itself is empty.
    order = np.zeros(new, np.int64)
    order[:old] = np.arange(old)
    lists.nlist = new
    lists.permute_invlists(faiss.swig_ptr(order))
    index.quantizer.add(centroids)
    index.nlist = new
