"""A bundle in memory: user tower, index, ids and vectors as one immutable object.

A `LoadedBundle` is all of one version: swapping is one assignment, and the old version's memory is freed when the last
request that started with it is answered. Loading verifies every checksum, then that the files fit together, then runs
tower and search once, so that faults show before the first request.
"""

import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from contracts import BundleFile, BundleLog, BundleManifest, IndexRows, ItemKeys, read_format
from contracts.bundle_files import BundleFiles
from contracts.bundle_rows import BundleRows
from contracts.item_rows import ItemRows
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
    return _Loader(BundleFiles(log, log.manifest(version))).load(device, threads)


@dataclass(frozen=True)
class _Loader:
    files: BundleFiles

    @property
    def manifest(self) -> BundleManifest:
        return self.files.manifest

    def load(self, device: Device, threads: int) -> LoadedBundle:
        rows = BundleRows.read(self.files)
        exact = ExactIndex(rows.vectors)
        loaded = LoadedBundle(
            manifest=self.manifest,
            tower=self.files.decode(BundleFile.TOWER, lambda data: Tower(data, threads)),
            index=self.index(exact, device),
            exact=exact,
            embeddings=rows.embeddings,
            ids=rows.ids,
            item_rows=rows.item_rows,
            popular=IndexRows(np.argsort(-rows.popularity, kind="stable")),
            popularity=rows.popularity,
            key_secret=found.key_secret if (found := read_format(self.files.log.store)) else "",
        )
        self.warm_up(loaded)
        return loaded

    def index(self, exact: ExactIndex, device: Device) -> Index:
        info, require = self.manifest.index, self.files.require
        ann = self.files.decode(BundleFile.INDEX, lambda data: open_index(data, info.parameters, device))
        shape = (int(ann.index.ntotal), int(ann.index.d))
        require(BundleFile.INDEX, shape == exact.vectors.shape, f"holds {shape} vectors, not {exact.vectors.shape}")
        require(BundleFile.INDEX, ann.by_inner_product, "does not search by inner product")
        # A flat index on the CPU holds the same vectors as exact search: one copy is enough.
        return exact if info.type == "Flat" and ann.keep is None else ann

    def warm_up(self, bundle: LoadedBundle) -> None:
        known = bundle.item_rows.keys[: self.manifest.history_length]
        for batch in (1, 2):
            history = ItemKeys(np.broadcast_to(known, (batch, len(known))))
            vectors = self.files.guarded(BundleFile.TOWER, partial(bundle.users, history))
            self.files.require(
                BundleFile.TOWER,
                vectors.shape == (batch, self.manifest.dimension) and bool(np.isfinite(vectors).all()),
                f"gives vectors of shape {vectors.shape} or values that are not finite",
            )
            if bundle.items:
                bundle.index.search(vectors, 1)
