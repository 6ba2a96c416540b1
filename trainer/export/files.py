"""The files of a bundle."""

import io

import numpy as np
import numpy.typing as npt

from contracts import BundleFile, BundleManifest, FileEntry, Store
from contracts.artefacts import write_table
from contracts.item_rows import FIRST_ITEM_ROW
from trainer.export.content import Content
from trainer.export.draft import Complete, Delta
from trainer.export.index import serialised
from trainer.export.tower import tower_to_onnx

__all__ = ["write_complete", "write_delta"]


def write_complete(store: Store, manifest: BundleManifest, draft: Complete) -> tuple[FileEntry, ...]:
    """Write the files of a complete bundle."""
    content, folder = draft.content, manifest.folder
    every = np.arange(len(content.vectors))
    return (
        store.write(f"{folder}/{BundleFile.INDEX}", serialised(draft.index), rows=len(every)),
        write_table(store, f"{folder}/{BundleFile.ITEMS}", content.items(every, every)),
        _write(store, f"{folder}/{BundleFile.EMBEDDINGS}", content.embeddings),
        _write(store, f"{folder}/{BundleFile.VECTORS}", content.vectors),
        _write_tower(store, folder, content),
    )


def write_delta(store: Store, manifest: BundleManifest, draft: Delta) -> tuple[FileEntry, ...]:
    """Write the files of a delta."""
    content, items, folder = draft.content, draft.items, manifest.folder
    embedded = np.concatenate([np.arange(FIRST_ITEM_ROW), items + FIRST_ITEM_ROW])
    files = [
        write_table(store, f"{folder}/{BundleFile.ITEMS}", content.items(items, draft.places[items])),
        _write(store, f"{folder}/{BundleFile.EMBEDDINGS}", content.embeddings[embedded]),
        _write(store, f"{folder}/{BundleFile.VECTORS}", content.vectors[items]),
        _write(store, f"{folder}/{BundleFile.REMOVED}", draft.removed.astype(np.int32)),
        _write_tower(store, folder, content),
    ]
    if draft.placed is not None:
        lists = draft.placed.assigned.lists[items]
        files.append(_write(store, f"{folder}/{BundleFile.LISTS}", lists.astype(np.int32)))
    if draft.appended is not None and len(draft.appended):
        files.append(_write(store, f"{folder}/{BundleFile.CENTROIDS}", draft.appended))
    return tuple(files)


def _write_tower(store: Store, folder: str, content: Content) -> FileEntry:
    tower = tower_to_onnx(content.state.tower, content.state.config.tower)
    return store.write(f"{folder}/{BundleFile.TOWER}", tower)


def _write(store: Store, name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> FileEntry:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return store.write(name, buffer.getvalue(), rows=len(array))
