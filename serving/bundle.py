"""A bundle in memory: user tower, index, ids and vectors as one immutable object.

A `LoadedBundle` is all of one version: swapping is one assignment, and the old version's memory is freed when the last
request that started with it is answered. Loading verifies every checksum, then that the files fit together, then runs
tower and search once, so that faults show before the first request. What a delta does not change, it shares with the
version before, except for the index, which is copied.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from contracts import BundleFile, BundleLog, BundleManifest, IndexRows, ItemKeys, read_format
from contracts.bundle_delta import BundleDelta
from contracts.bundle_files import BundleFiles
from contracts.bundle_rows import BundleRows
from contracts.index_delta import apply_delta, with_row_ids
from contracts.item_rows import ItemRows
from contracts.layers import Layers
from serving.index import AnnIndex, Device, Exact, Index, on_device, pick_gpu
from serving.layered import exact_index
from serving.tower import Tower

__all__ = ["LoadedBundle", "load_bundle"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LoadedBundle:
    """One version, ready to answer; `items` counts the items that it can return.

    `popular` are the rows of items from the most popular down. `key_secret` is the store's (`contracts.keys`).
    """

    manifest: BundleManifest
    tower: Tower
    index: Index
    exact: Exact
    rows: BundleRows
    popular: IndexRows
    key_secret: str = ""
    servable_at: float = field(default_factory=time.time)

    @property
    def version(self) -> str:
        """The name of the bundle."""
        return self.manifest.version

    @property
    def items(self) -> int:
        """How many items can be returned."""
        return self.manifest.items

    @property
    def ids(self) -> Layers[np.object_]:
        """The ids of items by row, strings."""
        return self.rows.ids

    @property
    def embeddings(self) -> Layers[np.float32]:
        """What the tower reads of items, (2 + rows, dimension)."""
        return self.rows.embeddings

    @property
    def item_rows(self) -> ItemRows:
        """The rows of keys."""
        return self.rows.item_rows

    @property
    def popularity(self) -> npt.NDArray[np.float64]:
        """Decayed counts by row; minus infinity where a row holds no item."""
        return self.rows.popularity

    def rows_of(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and for unknown items."""
        return self.item_rows.look_up(keys)

    def users(self, histories: ItemKeys) -> Floats:
        """Return the tower's vectors (n, dimension) of histories (n, any length), left-padded, oldest first.

        The newest items that the model was trained to read count; unknown ones share one embedding.
        """
        rows, mask = self.item_rows.tower_inputs(histories, self.manifest.history_length)
        return self.normalised(self.tower(self.embeddings[rows], mask))

    def normalised(self, vectors: Floats) -> Floats:
        """Return vectors (n, dimension) as they are searched with: of length 1 where the metric is cosine."""
        if self.manifest.metric != "cosine":
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Floats = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        return scaled


def load_bundle(
    log: BundleLog, version: str, device: Device = "cpu", threads: int = 1, served: LoadedBundle | None = None
) -> LoadedBundle:
    """Read, verify and warm up one version.

    Where it builds on the bundle that is `served`, only the deltas since are read, and nothing of the served one is
    changed; otherwise its whole chain is.

    Raises
    ------
    CorruptArtefactError
        Where a file is not what the manifest says; as `IncompatibleBundleError` where it is, and still of no use.
    FileNotFoundError
        Where there is no such bundle.
    """
    manifest = log.manifest(version)
    known = None if served is None or pick_gpu(device) else served
    chain = [BundleFiles(log, one) for one in log.chain(manifest, [known.manifest] if known else [])]
    from_known = known is not None and chain[0].manifest == known.manifest
    parts = _copied(known) if known is not None and from_known else _read(chain[0], device)
    for files in chain[1:]:
        parts = _changed(parts, files)
    return _Loader(chain[-1], parts).load(device, threads)


class _Parts(NamedTuple):
    """What deltas change: the rows, and the FAISS index in this process's memory; None: the rows are searched."""

    rows: BundleRows
    index: Any


def _copied(served: LoadedBundle) -> _Parts:
    """Return the parts of a bundle; of the rows, what deltas do not change stays shared."""
    index = served.index
    return _Parts(served.rows, faiss.clone_index(index.index) if isinstance(index, AnnIndex) else None)


def _read(files: BundleFiles, device: Device) -> _Parts:
    """Read a complete bundle."""
    rows = BundleRows.read(files)
    index = files.decode(BundleFile.INDEX, lambda data: faiss.deserialize_index(np.frombuffer(data, np.uint8)))
    shape, wanted = (int(index.ntotal), int(index.d)), rows.vectors.base.shape
    files.require(BundleFile.INDEX, shape == wanted, f"holds {shape} vectors, not {wanted}")
    by_inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
    files.require(BundleFile.INDEX, by_inner_product, "does not search by inner product")
    # A flat index on the CPU holds the same vectors as exact search: one copy is enough.
    return _Parts(rows, None if files.manifest.index.type == "Flat" and not pick_gpu(device) else index)


def _changed(parts: _Parts, files: BundleFiles) -> _Parts:
    """Apply a delta: to new rows, and to the index in place."""
    delta = BundleDelta.read(files)
    rows, index = parts.rows.changed(files, delta), parts.index
    if index is not None:
        index = with_row_ids(index)
        files.guarded(BundleFile.LISTS, partial(apply_delta, index, delta))
        count = f"leave {index.ntotal} vectors in the index, the manifest says {files.manifest.items}"
        files.require(BundleFile.LISTS, index.ntotal == files.manifest.items, count)
    return _Parts(rows, index)


@dataclass(frozen=True)
class _Loader:
    """Puts parts together with the tower, as the last manifest of their chain describes them."""

    files: BundleFiles
    parts: _Parts

    def load(self, device: Device, threads: int) -> LoadedBundle:
        rows, manifest = self.parts.rows, self.files.manifest
        exact = exact_index(rows.vectors)
        loaded = LoadedBundle(
            manifest=manifest,
            tower=self.files.decode(BundleFile.TOWER, lambda data: Tower(data, threads)),
            index=self.index(exact, device),
            exact=exact,
            rows=rows,
            popular=IndexRows(np.argsort(-rows.popularity, kind="stable")[: manifest.items]),
            key_secret=found.key_secret if (found := read_format(self.files.log.store)) else "",
        )
        self.warm_up(loaded)
        return loaded

    def index(self, exact: Exact, device: Device) -> Index:
        info = self.files.manifest.index
        if self.parts.index is None:
            return exact
        place = partial(on_device, self.parts.index, info.parameters, device)
        ann: AnnIndex = self.files.guarded(BundleFile.INDEX, place)
        return exact if info.type == "Flat" and ann.keep is None else ann

    def warm_up(self, bundle: LoadedBundle) -> None:
        known = bundle.item_rows.keys[: bundle.manifest.history_length]
        for batch in (1, 2):
            history = ItemKeys(np.broadcast_to(known, (batch, len(known))))
            vectors = self.files.guarded(BundleFile.TOWER, partial(bundle.users, history))
            self.files.require(
                BundleFile.TOWER,
                vectors.shape == (batch, bundle.manifest.dimension) and bool(np.isfinite(vectors).all()),
                f"gives vectors of shape {vectors.shape} or values that are not finite",
            )
            if bundle.items:
                bundle.index.search(vectors, 1)
