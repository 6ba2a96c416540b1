"""What a delta does to a FAISS index. Importing it needs FAISS, hence `contracts` itself does not."""

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from contracts.bundle_delta import BundleDelta

__all__ = ["append_lists", "apply_delta", "takes_deltas", "with_row_ids"]


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


def apply_delta(index: Any, delta: BundleDelta) -> None:
    """Change an index in place: `with_row_ids` made it, or a delta was applied before.

    Raises
    ------
    ValueError
        Where the delta names no lists for an index that has lists, or lists that there are not.
    RuntimeError
        From FAISS, for an index of which no row can be removed.
    """
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None and delta.centroids is not None:
        append_lists(index, delta.centroids)
    gone = np.concatenate([delta.removed, delta.rows])
    if len(gone):
        index.remove_ids(faiss.IDSelectorBatch(gone))
    if not len(delta.rows):
        return
    if inverted is None:
        index.add_with_ids(delta.vectors, delta.rows)
        return
    if delta.lists is None or not ((delta.lists >= 0) & (delta.lists < index.nlist)).all():
        raise ValueError(f"names no lists, or others than 0 to {index.nlist - 1}")
    rows, lists = np.ascontiguousarray(delta.rows), np.ascontiguousarray(delta.lists)
    index.add_core(len(rows), faiss.swig_ptr(delta.vectors), faiss.swig_ptr(rows), faiss.swig_ptr(lists))


def append_lists(index: Any, centroids: npt.NDArray[np.float32]) -> None:
    """Append empty lists with these centroids (c, d) to an IVF index."""
    old, lists = index.invlists, index.nlist + len(centroids)
    new: Any = faiss.ArrayInvertedLists(lists, index.code_size)
    for number in range(index.nlist):
        if size := old.list_size(number):
            new.add_entries(number, size, old.get_ids(number), old.get_codes(number))
    index.quantizer.add(centroids)
    index.nlist = lists
    index.replace_invlists(new, True)  # noqa: FBT003 - the index owns them, and FAISS takes no keywords
    new.this.disown()
