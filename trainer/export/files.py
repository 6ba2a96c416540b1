"""Write the files of a bundle."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleManifest, FileEntry, Store
from weir.contracts.base import columns
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, BundleRows
from weir.contracts.storage.artefacts import GROUP, write_groups, write_table
from weir.trainer.export.index import write_index
from weir.trainer.export.plan import Complete, Delta

__all__ = ["write_compacted", "write_complete", "write_delta"]

_BLOCK: Final = 1 << 14
"""Items converted at a time: other threads are blocked meanwhile."""


def write_complete(
    store: Store, manifest: BundleManifest, draft: Complete, model: Mapping[str, bytes]
) -> tuple[FileEntry, ...]:
    """Write the files of a complete bundle; embeddings and vectors are already written and only get published.

    `model` holds the files of the tower and, if any, the scorer and the feature weights, by name.
    """
    content, folder = draft.content, manifest.folder
    return (
        _write_index(store, folder, draft.index()),
        _write_items(store, folder, lambda some: content.items(some, some), np.arange(len(content.vectors))),
        *(draft.keep() for draft in content.drafts or ()),
        *_write_model(store, folder, model),
    )


def write_compacted(
    store: Store, manifest: BundleManifest, rows: BundleRows, index: Any, model: Mapping[str, bytes]
) -> tuple[FileEntry, ...]:
    """Write the files of a complete bundle that replaces a chain with these `rows`.

    `model` holds the model files of the chain's last delta, by name.
    """
    folder = manifest.folder
    return (
        _write_index(store, folder, index),
        _write_items(store, folder, partial(_items, rows), rows.live),
        _write_layers(store, f"{folder}/{BundleFile.EMBEDDINGS}", rows.embeddings),
        _write_layers(store, f"{folder}/{BundleFile.VECTORS}", rows.vectors),
        *_write_model(store, folder, model),
    )


def _items(rows: BundleRows, live: npt.NDArray[np.int64]) -> pa.Table:
    """Return the table ``items.parquet`` for the index rows `live` (n,)."""
    blocks = [_item_block(rows, live[first : first + _BLOCK]) for first in range(0, len(live), _BLOCK)]
    return pa.Table.from_batches(blocks, BUNDLE_ITEMS_SCHEMA).combine_chunks()


def _item_block(rows: BundleRows, live: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return a part of ``items.parquet``, for the index rows `live` (n,) of one block."""
    values: dict[str, Any] = {
        columns.ROW: live.astype(np.int32),
        columns.ITEM_ID: rows.ids[live].tolist(),
        columns.ITEM_KEY: rows.keys[live],
        columns.POPULARITY: rows.popularity[live],
    }
    return pa.RecordBatch.from_pydict(values, schema=BUNDLE_ITEMS_SCHEMA)


def write_delta(
    store: Store, manifest: BundleManifest, draft: Delta, model: Mapping[str, bytes]
) -> tuple[FileEntry, ...]:
    """Write the files of a delta; `model` is as in `write_complete`."""
    content, items, folder = draft.content, draft.items, manifest.folder
    embedded = np.concatenate([np.arange(FIRST_ITEM_ROW), items + FIRST_ITEM_ROW])
    files = [
        write_table(store, f"{folder}/{BundleFile.ITEMS}", content.items(items, draft.places[items])),
        _write(store, f"{folder}/{BundleFile.EMBEDDINGS}", content.embeddings[embedded]),
        _write(store, f"{folder}/{BundleFile.VECTORS}", content.vectors[items]),
        _write(store, f"{folder}/{BundleFile.REMOVED}", draft.removed.astype(np.int32)),
        *_write_model(store, folder, model),
    ]
    if draft.placed is not None:
        lists = draft.placed.assigned.lists[items]
        files.append(_write(store, f"{folder}/{BundleFile.LISTS}", lists))
    if draft.appended is not None and len(draft.appended):
        files.append(_write(store, f"{folder}/{BundleFile.CENTROIDS}", draft.appended))
    return tuple(files)


def _write_model(store: Store, folder: str, model: Mapping[str, bytes]) -> Iterator[FileEntry]:
    return (store.write(f"{folder}/{name}", data) for name, data in model.items())


def _write_index(store: Store, folder: str, index: Any) -> FileEntry:
    return store.write_with(f"{folder}/{BundleFile.INDEX}", partial(write_index, index), rows=int(index.ntotal))


def _write_items(
    store: Store, folder: str, items_of: Callable[[npt.NDArray[np.int64]], pa.Table], rows: npt.NDArray[np.int64]
) -> FileEntry:
    """Write ``items.parquet`` for index rows (n,), chunk by chunk; `items_of` returns the table of a chunk."""
    groups = (items_of(rows[first : first + GROUP]) for first in range(0, len(rows), GROUP))
    return write_groups(store, f"{folder}/{BundleFile.ITEMS}", BUNDLE_ITEMS_SCHEMA, groups, len(rows))


def _write(store: Store, name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> FileEntry:
    """Write an array as a .npy file."""
    return store.write_with(name, lambda file: np.save(file, array, allow_pickle=False), rows=len(array))


def _write_layers(store: Store, name: str, layers: Layers[np.float32]) -> FileEntry:
    """Write the rows (n, d) of a base and its changes as one .npy file, piece by piece; removed rows become zeros."""

    def fill(file: IO[bytes]) -> None:
        shape = (len(layers), *layers.base.shape[1:])
        kind = np.lib.format.dtype_to_descr(layers.base.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
        for piece in layers.pieces(0.0):
            file.write(piece.data)

    return store.write_with(name, fill, rows=len(layers))
