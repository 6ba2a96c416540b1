"""What a bundle holds for each row of its index: ids, keys, vectors, embeddings and popularity."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from contracts import columns
from contracts.bundle import BundleFile
from contracts.bundle_files import BundleFiles
from contracts.item_rows import FIRST_ITEM_ROW, ItemRows
from contracts.keys import ItemKeys

__all__ = ["BundleRows"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class BundleRows:
    """The rows of one version, never changed.

    `ids`, `keys` and `popularity` (decayed counts) are (rows,), `vectors` (rows, d) and `embeddings` (2 + rows, d);
    `item_rows` finds the rows of keys.
    """

    ids: npt.NDArray[np.object_]
    keys: ItemKeys
    popularity: npt.NDArray[np.float64]
    vectors: Floats
    embeddings: Floats
    item_rows: ItemRows

    @classmethod
    def read(cls, files: BundleFiles) -> Self:
        """Read a bundle; raises `CorruptArtefactError` where files are damaged or do not fit together."""
        items, count, width = files.items(), files.manifest.items, files.manifest.dimension
        in_order = np.array_equal(items[columns.ROW].to_numpy(), np.arange(count))
        files.require(BundleFile.ITEMS, in_order, f"does not number its rows from 0 to {count - 1}")
        keys = ItemKeys(items[columns.ITEM_KEY].to_numpy())
        return cls(
            ids=np.array(items[columns.ITEM_ID].to_pylist(), dtype=object),
            keys=keys,
            popularity=items[columns.POPULARITY].to_numpy(),
            vectors=files.matrix(BundleFile.VECTORS, (count, width)),
            embeddings=files.matrix(BundleFile.EMBEDDINGS, (count + FIRST_ITEM_ROW, width)),
            item_rows=ItemRows.of(keys),
        )
