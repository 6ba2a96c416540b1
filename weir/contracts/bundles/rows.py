"""The rows of a bundle's index (keys, ids, vectors and embeddings), and deltas to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts.base.arrays import Layers, Overlay, ascending
from weir.contracts.base.keys import PADDING_KEY, ItemKeys
from weir.contracts.base.string_arrays import Texts
from weir.contracts.bundles.files import BundleFiles
from weir.contracts.bundles.manifest import BundleFile, IndexRows

__all__ = ["FIRST_ITEM_ROW", "BundleDelta", "BundleRows", "ItemRows", "tower_rows"]

Floats = npt.NDArray[np.float32]
FIRST_ITEM_ROW: Final = 2
"""Row of ``embeddings.npy`` with the embedding of index row 0; see `weir.contracts.bundles.manifest.BundleFile`."""
_PADDING_ROW: Final = 0
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class ItemRows:
    """Map from the keys of a bundle's `count` items to index rows.

    At first `keys` (n,), ascending, have the index `rows` (n,). `later` has the rows of keys that were added or moved
    since; -1 marks a removed key.
    """

    keys: ItemKeys
    rows: IndexRows
    later: Overlay[np.int64]
    count: int

    @classmethod
    def of(cls, keys: ItemKeys, rows: IndexRows | None = None) -> "ItemRows":
        """Index the keys (items,) of ``items.parquet`` by their `rows` (items,), by default 0, 1, ... in order."""
        order = np.argsort(keys)
        places = order if rows is None else rows[order]
        return cls(ItemKeys(keys[order]), IndexRows(places), Overlay.empty(places), len(keys))

    def __len__(self) -> int:
        return self.count

    def without(self, keys: ItemKeys) -> "ItemRows":
        """Return these items without the distinct `keys` (n,)."""
        gone = self.later.replaced(keys, np.full(len(keys), -1))
        return ItemRows(self.keys, self.rows, gone, self.count - len(keys))

    def including(self, keys: ItemKeys, rows: IndexRows) -> "ItemRows":
        """Return these items and further distinct `keys` (n,) at `rows` (n,)."""
        return ItemRows(self.keys, self.rows, self.later.replaced(keys, rows), self.count + len(keys))

    def look_up(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and unknown items."""
        found = np.full(keys.shape, -1, np.int64)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            found = np.where(self.keys[place] == keys, self.rows[place], -1)
        if len(self.later):
            place, late = self.later.find(keys)
            found = np.where(late, self.later.values[place], found)
        return IndexRows(found)

    def tower_inputs(
        self, histories: ItemKeys, newest: int, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the user tower's inputs for histories (n, any length), left-padded, oldest first.

        Only the `newest` items (at most `length`) that the bundle knows count: the vector of an unknown item says less
        than the item before it. Returns rows of ``embeddings.npy`` (n, length) and the mask (n, length), True for
        items.
        """
        rows = np.full((len(histories), length), _PADDING_ROW, np.int64)
        found = self.look_up(histories)
        # Move known items to the right, keeping their order.
        order = np.argsort(found >= 0, axis=1, kind="stable")
        known = np.take_along_axis(found, order, axis=1)[:, -newest:]
        rows[:, length - known.shape[1] :] = np.where(known >= 0, known + FIRST_ITEM_ROW, _PADDING_ROW)
        return rows, rows != _PADDING_ROW


def tower_rows(histories: Sequence[IndexRows], length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return what `ItemRows.tower_inputs` returns, given the index rows of each history's known items (<= `length`)."""
    rows = np.full((len(histories), length), _PADDING_ROW, np.int64)
    for row, known in zip(rows, histories, strict=True):
        row[length - len(known) :] = known + FIRST_ITEM_ROW
    return rows, rows != _PADDING_ROW


@dataclass(frozen=True, eq=False)
class BundleDelta:
    """What a delta bundle changes: the new content of changed and added `rows` (m,), and the `removed` rows (r,).

    `ids`, `keys` and `popularity` are (m,), `vectors` (m, d) and `embeddings` (2 + m, d). `lists` (m,) are the inverted
    lists of the rows and `centroids` (c, d) the centroids of appended lists; both are None for an index without lists.
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
        """Read a delta; raises `CorruptArtefactError` if files are damaged or do not fit together."""
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


@dataclass(frozen=True, eq=False)
class BundleRows:
    """The immutable index rows of one bundle version; a row may be without an item.

    `ids`, `keys` and `popularity` (decayed counts) are (rows,), `vectors` (rows, d) and `embeddings` (2 + rows, d). A
    row without an item has `PADDING_KEY` and popularity minus infinity. `item_rows` maps keys to rows.
    """

    ids: Layers[np.object_]
    keys: Layers[np.int64]
    popularity: Layers[np.float64]
    vectors: Layers[np.float32]
    embeddings: Layers[np.float32]
    item_rows: ItemRows

    @classmethod
    def read(cls, files: BundleFiles) -> Self:
        """Read a complete bundle; raises `CorruptArtefactError` if files are damaged or do not fit together."""
        (rows, ids, keys, popularity), *matrices = files.each(files.items, *_matrices_of(files))
        count = files.manifest.rows
        in_order = len(rows) == files.manifest.items and _ascend(rows, count)
        files.require(BundleFile.ITEMS, in_order, f"does not number {files.manifest.items} rows from 0 to {count - 1}")
        gone = _others(rows, count)
        return cls(
            ids=Layers.of(_spread(files, ids, rows, ""), gone),
            keys=Layers.of(_spread(files, keys, rows, PADDING_KEY)),
            popularity=Layers.of(_spread(files, popularity, rows, -np.inf)),
            **_without(gone, *matrices),
            item_rows=_kept_rows(files, keys, IndexRows(rows.astype(np.int64)) if len(gone) else None),
        )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def live(self) -> IndexRows:
        """The rows that have an item, ascending."""
        has_item = [piece != PADDING_KEY for piece in self.keys.pieces(PADDING_KEY)]
        return IndexRows(np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *has_item])))

    def merged(self, files: BundleFiles) -> "BundleRows":
        """Return the same rows as if read from the compacted bundle `files`: plain arrays without overlays.

        Reads only the vectors and embeddings of `files`.
        """
        keys, live = self.keys.merged(PADDING_KEY), self.live
        gone = _others(live, len(self))
        return BundleRows(
            ids=Layers.of(files.strings(map(pa.array, self.ids.pieces("")), len(self)), gone),
            keys=Layers.of(files.kept(keys)),
            popularity=Layers.of(files.kept(self.popularity.merged(-np.inf))),
            **_without(gone, *(read() for read in _matrices_of(files))),
            item_rows=_kept_rows(files, ItemKeys(keys[live]), live),
        )

    def changed(self, files: BundleFiles, delta: BundleDelta) -> "BundleRows":
        """Return the rows after a delta, read from `files`; raises `CorruptArtefactError` if the delta does not fit."""
        rows, gone = delta.rows, delta.removed
        size = max(len(self), int(rows.max(initial=-1)) + 1)
        without_gap = np.count_nonzero(rows >= len(self)) == size - len(self)
        files.require(BundleFile.ITEMS, without_gap, f"adds rows, but not all of {len(self)} to {size - 1}")
        there = bool((gone >= 0).all() and (gone < len(self)).all() and (self.keys[gone] != PADDING_KEY).all())
        apart = there and len(ascending(np.concatenate([rows, gone]))) == len(rows) + len(gone)
        files.require(BundleFile.REMOVED, apart, "names rows twice, without an item, or among the changed ones")
        item_rows = self._items_after(files, delta)
        both = np.concatenate([rows, gone])
        no_keys, no_counts = np.full(len(gone), PADDING_KEY, np.int64), np.full(len(gone), -np.inf)
        embedded = np.concatenate([np.arange(FIRST_ITEM_ROW), rows + FIRST_ITEM_ROW])
        return BundleRows(
            ids=self.ids.replaced(rows, delta.ids, gone),
            keys=self.keys.replaced(both, np.concatenate([delta.keys, no_keys]), _NONE),
            popularity=self.popularity.replaced(both, np.concatenate([delta.popularity, no_counts]), _NONE),
            vectors=self.vectors.replaced(rows, delta.vectors, gone),
            embeddings=self.embeddings.replaced(embedded, delta.embeddings, gone + FIRST_ITEM_ROW),
            item_rows=item_rows,
        )

    def _items_after(self, files: BundleFiles, delta: BundleDelta) -> ItemRows:
        """Return the map from keys to rows after a delta whose rows were checked."""
        before = np.full(len(delta.rows), PADDING_KEY, np.int64)
        old = delta.rows < len(self)
        before[old] = self.keys[delta.rows[old]]
        other = before != delta.keys
        replaced = before[other & (before != PADDING_KEY)]
        left = self.item_rows.without(ItemKeys(np.concatenate([self.keys[delta.removed], replaced])))
        came = ItemKeys(delta.keys[other])
        files.require(BundleFile.ITEMS, bool((left.look_up(came) < 0).all()), "adds an item that is there already")
        found = left.including(came, IndexRows(delta.rows[other]))
        count = f"makes {len(found)} items, the manifest says {files.manifest.items}"
        files.require(BundleFile.ITEMS, len(found) == files.manifest.items, count)
        return found


def _matrices_of(files: BundleFiles) -> tuple[Callable[[], Floats], Callable[[], Floats]]:
    """Return readers of the vectors and of the embeddings of a complete bundle."""
    count, width = files.manifest.rows, files.manifest.dimension
    vectors = partial(files.matrix, BundleFile.VECTORS, (count, width))
    return vectors, partial(files.matrix, BundleFile.EMBEDDINGS, (count + FIRST_ITEM_ROW, width))


def _without(gone: npt.NDArray[np.int64], vectors: Floats, embeddings: Floats) -> dict[str, Layers[np.float32]]:
    """Return layers of vectors and embeddings without the rows `gone`, as keyword arguments of `BundleRows`."""
    return {"vectors": Layers.of(vectors, gone), "embeddings": Layers.of(embeddings, gone + FIRST_ITEM_ROW)}


def _ascend(rows: npt.NDArray[np.int32], count: int) -> bool:
    """Return whether rows (n,) ascend strictly within [0, `count`)."""
    return not len(rows) or bool(rows[0] >= 0 and rows[-1] < count and (rows[1:] > rows[:-1]).all())


def _others(rows: npt.NDArray[np.integer[Any]], count: int) -> npt.NDArray[np.int64]:
    """Return the rows below `count` that are not in `rows`, ascending."""
    is_other = np.ones(count, np.bool_)
    is_other[rows] = False
    return np.flatnonzero(is_other)


def _kept_rows(files: BundleFiles, keys: ItemKeys, rows: IndexRows | None) -> ItemRows:
    """Return `ItemRows.of` keys and rows, with arrays in memory or mapped (`BundleFiles.kept`)."""
    item_rows = ItemRows.of(keys, rows)
    arrays = ItemKeys(files.kept(item_rows.keys)), IndexRows(files.kept(item_rows.rows))
    return ItemRows(*arrays, item_rows.later, item_rows.count)


def _spread(files: BundleFiles, values: npt.NDArray[Any], rows: npt.NDArray[np.int32], empty: Any) -> npt.NDArray[Any]:
    """Return an array of all rows: the values (n,) at `rows` (n,), ascending, and `empty` in other rows."""
    count = files.manifest.rows
    if len(rows) == count:
        return values
    if isinstance(values, Texts):
        return files.kept(cast("npt.NDArray[Any]", values.spread(rows, count)))
    found = np.full(count, empty, values.dtype)
    found[rows] = values
    return files.kept(found)
