"""A bundle in memory: user tower, index, ids and vectors as one immutable object.

A `LoadedBundle` is all of one version: swapping is one assignment, and the old version's memory is freed when the last
request that started with it is answered. Loading verifies every checksum, then that the files fit together, then runs
tower and search once, so that faults show before the first request.
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from contracts import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleLog,
    BundleManifest,
    IndexRows,
    ItemKeys,
    columns,
    read_format,
)
from contracts.item_rows import FIRST_ITEM_ROW, ItemRows
from serving.errors import IncompatibleBundleError
from serving.index import Device, ExactIndex, Index, open_index
from serving.tower import Tower

__all__ = ["LoadedBundle", "load_bundle"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LoadedBundle:
    """One version, ready to answer; `items` counts index rows.

    `embeddings` is (2 + items, dimension), `ids` (items,) holds strings, `popular` are the index rows from the most
    popular down, and `popularity` (items,) are the decayed counts. `key_secret` is the store's (`contracts.keys`).
    """

    manifest: BundleManifest
    tower: Tower
    index: Index
    exact: ExactIndex
    embeddings: Floats
    ids: npt.NDArray[np.object_]
    item_rows: ItemRows
    popular: IndexRows
    popularity: npt.NDArray[np.float64]
    key_secret: str = ""
    servable_at: float = field(default_factory=time.time)

    @property
    def version(self) -> str:
        """The name of the bundle."""
        return self.manifest.version

    @property
    def items(self) -> int:
        """How many items can be returned."""
        return len(self.ids)

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


def load_bundle(log: BundleLog, version: str, device: Device = "cpu", threads: int = 1) -> LoadedBundle:
    """Read, verify and warm up one version.

    Raises
    ------
    CorruptArtefactError
        Where a file is not what the manifest says; as `IncompatibleBundleError` where it is, and still of no use.
    FileNotFoundError
        Where there is no such bundle.
    """
    manifest = log.manifest(version)
    return _Loader(log, manifest).load(device, threads)


@dataclass(frozen=True)
class _Loader:
    log: BundleLog
    manifest: BundleManifest

    def load(self, device: Device, threads: int) -> LoadedBundle:
        items = self.decode(BundleFile.ITEMS, lambda data: pq.read_table(pa.BufferReader(data)))
        self.require(BundleFile.ITEMS, items.schema.equals(BUNDLE_ITEMS_SCHEMA), f"has the schema {items.schema}")
        item_rows = ItemRows.of(items[columns.ITEM_KEY].to_numpy())
        popularity = items[columns.POPULARITY].to_numpy()
        count, width = self.manifest.items, self.manifest.dimension
        finite = bool(np.isfinite(popularity).all())
        self.require(BundleFile.ITEMS, finite, "holds a popularity that is NaN or infinite")
        in_order = np.array_equal(items[columns.ROW].to_numpy(), np.arange(count))
        self.require(BundleFile.ITEMS, in_order, f"does not number its rows from 0 to {count - 1}")
        distinct = bool((np.diff(item_rows.keys) > 0).all())
        self.require(BundleFile.ITEMS, distinct, "has the same item more than once")
        exact = ExactIndex(self.matrix(BundleFile.VECTORS, (count, width)))
        loaded = LoadedBundle(
            manifest=self.manifest,
            tower=self.decode(BundleFile.TOWER, lambda data: Tower(data, threads)),
            index=self.index(exact, device),
            exact=exact,
            embeddings=self.matrix(BundleFile.EMBEDDINGS, (count + FIRST_ITEM_ROW, width)),
            ids=np.array(items[columns.ITEM_ID].to_pylist(), dtype=object),
            item_rows=item_rows,
            popular=IndexRows(np.argsort(-popularity, kind="stable")),
            popularity=popularity,
            key_secret=found.key_secret if (found := read_format(self.log.store)) else "",
        )
        self.warm_up(loaded)
        return loaded

    def index(self, exact: ExactIndex, device: Device) -> Index:
        info = self.manifest.index
        ann = self.decode(BundleFile.INDEX, lambda data: open_index(data, info.parameters, device))
        shape = (int(ann.index.ntotal), int(ann.index.d))
        self.require(
            BundleFile.INDEX, shape == exact.vectors.shape, f"holds {shape} vectors, not {exact.vectors.shape}"
        )
        self.require(BundleFile.INDEX, ann.by_inner_product, "does not search by inner product")
        # A flat index on the CPU holds the same vectors as exact search: one copy is enough.
        return exact if info.type == "Flat" and ann.keep is None else ann

    def matrix(self, name: str, shape: tuple[int, int]) -> Floats:
        matrix = self.decode(name, lambda data: np.load(io.BytesIO(data), allow_pickle=False))
        found = f"is {matrix.dtype} of shape {matrix.shape}, expected float32 of shape {shape}"
        self.require(name, matrix.dtype == np.float32 and matrix.shape == shape, found)
        self.require(name, bool(np.isfinite(matrix).all()), "holds NaN or infinite values")
        return np.ascontiguousarray(matrix)

    def warm_up(self, bundle: LoadedBundle) -> None:
        known = bundle.item_rows.keys[: self.manifest.history_length]
        for batch in (1, 2):
            history = ItemKeys(np.broadcast_to(known, (batch, len(known))))
            vectors = self.guarded(BundleFile.TOWER, partial(bundle.users, history))
            self.require(
                BundleFile.TOWER,
                vectors.shape == (batch, self.manifest.dimension) and bool(np.isfinite(vectors).all()),
                f"gives vectors of shape {vectors.shape} or values that are not finite",
            )
            if bundle.items:
                bundle.index.search(vectors, 1)

    def decode(self, name: str, decoder: Callable[[bytes], Any]) -> Any:
        return self.guarded(name, partial(decoder, self.log.read(self.manifest, name)))

    def guarded(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # each format's library has errors of its own; what matters is whose file it is
            raise self.fault(name, f"cannot be used: {error}") from error

    def require(self, name: str, holds: bool, otherwise: str) -> None:
        if not holds:
            raise self.fault(name, otherwise)

    def fault(self, name: str, problem: str) -> IncompatibleBundleError:
        return IncompatibleBundleError(self.log.store.path(f"{self.manifest.folder}/{name}"), problem)
