"""A delta bundle: what changes in its parent, verified and decoded."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from weir.contracts.ascending import ascending
from weir.contracts.bundle_files import BundleFiles
from weir.contracts.bundle_manifest import BundleFile, IndexRows
from weir.contracts.item_rows import FIRST_ITEM_ROW
from weir.contracts.keys import ItemKeys

__all__ = ["BundleDelta"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class BundleDelta:
    """Changed and new `rows` (m,) with all that they hold, and `removed` (r,) ones.

    `ids`, `keys` and `popularity` are (m,), `vectors` (m, d) and `embeddings` (2 + m, d). `lists` (m,) are the inverted
    lists of the rows and `centroids` (c, d) those of appended lists; both are None for an index without lists.
    """

    rows: IndexRows
    ids: npt.NDArray[np.object_]
    keys: ItemKeys
    popularity: npt.NDArray[np.float64]
    vectors: Floats
    embeddings: Floats
    removed: IndexRows
    lists: npt.NDArray[np.int64] | None = None
    centroids: Floats | None = None

    @classmethod
    def read(cls, files: BundleFiles) -> Self:
        """Read a delta; raises `CorruptArtefactError` where files are damaged or do not fit together."""
        items, manifest = files.items(), files.manifest
        count, width = manifest.changed, manifest.dimension
        rows = items.rows.astype(np.int64)
        distinct = len(rows) == count and len(ascending(rows)) == count and bool((rows >= 0).all())
        files.require(BundleFile.ITEMS, distinct, f"does not describe {count} rows, each once")
        lists, centroids = None, None
        if files.has(BundleFile.LISTS):
            lists = files.array(BundleFile.LISTS, np.int32, (count,)).astype(np.int64)
        if files.has(BundleFile.CENTROIDS):
            added = manifest.file(BundleFile.CENTROIDS).rows
            centroids = files.matrix(BundleFile.CENTROIDS, (added, width))
        return cls(
            rows=IndexRows(rows),
            ids=items.ids,
            keys=items.keys,
            popularity=items.popularity,
            vectors=files.matrix(BundleFile.VECTORS, (count, width)),
            embeddings=files.matrix(BundleFile.EMBEDDINGS, (count + FIRST_ITEM_ROW, width)),
            removed=IndexRows(files.array(BundleFile.REMOVED, np.int32, (manifest.removed,)).astype(np.int64)),
            lists=lists,
            centroids=centroids,
        )
