"""What an export reads of a state: of all items, in files that become those of the bundle, or of some."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from weir.contracts import BUNDLE_ITEMS_SCHEMA, PADDING_KEY, BundleFile, ItemKeys, Store, columns
from weir.contracts.ascending import ascending
from weir.contracts.drafts import ArrayDraft
from weir.contracts.scratch import zeros_in_scratch
from weir.contracts.texts import Texts
from weir.contracts.variants import version_of
from weir.trainer.export.clusters import Clusters
from weir.trainer.export.naming import name_of
from weir.trainer.items.left_keys import TOO_MANY
from weir.trainer.items.rows import FIRST_ITEM, Reader, TableRows
from weir.trainer.state.assigner import Assigned
from weir.trainer.state.codec import array_of
from weir.trainer.state.item_writer import ItemPaths
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.spool import Spool
from weir.trainer.towers import project

__all__ = ["Content", "Line"]

Floats = npt.NDArray[np.float32]

_AT_ONCE: Final = 1 << 16
"""Rows fetched at a time, at most: with 64 dimensions 16 MB."""

_SHARED: Final = 1 << 17
"""Items whose lists ranks look for together, at least: of fewer, one finds them in the time that it takes to ask."""


class Line(NamedTuple):
    """The store and the variant that a bundle is for."""

    store: Store
    variant: str

    def folder(self, version: str) -> str:
        """Return where the bundle of a content is to be."""
        return f"bundles/{version_of(version, self.variant)}"


class Described(NamedTuple):
    """What ``items.parquet`` says of all items, (n,) each, on disk."""

    keys: ItemKeys
    ids: Texts
    popularity: npt.NDArray[np.float64]

    @classmethod
    def of(cls, content: "Content") -> "Described":
        """Read it of a whole content, piece by piece; called as `Embeddings.fetch`."""
        state, count = content.state, len(content.rows)
        popularity = zeros_in_scratch(count, np.float64)

        def ids() -> Iterator[pa.Array]:
            for first in range(0, count, _AT_ONCE):
                rows = TableRows(content.rows[first : first + _AT_ONCE])
                popularity[first : first + _AT_ONCE] = _popularity(state, rows)
                yield pa.array(state.table.ids.of(rows), pa.large_string())

        return cls(content.keys, Texts.spooled(ids(), count), popularity)


class Drafts(NamedTuple):
    """Two files of a complete bundle, not there yet."""

    embeddings: ArrayDraft
    vectors: ArrayDraft

    @classmethod
    def of(cls, state: TrainerState, line: Line | None, version: str) -> "Drafts":
        """Let ranks write them, each what it keeps; called as `Embeddings.fetch`."""
        count, width = len(state.table), state.embeddings.weight.shape[1]
        store = Store(tempfile.gettempdir()) if line is None else line.store
        prefix = "" if line is None else f"{line.folder(version)}/"
        drafts = cls(
            ArrayDraft(store, f"{prefix}{BundleFile.EMBEDDINGS}", (FIRST_ITEM + count, width), np.float32),
            ArrayDraft(store, f"{prefix}{BundleFile.VECTORS}", (count, width), np.float32),
        )
        state.writer.write(ItemPaths(*(str(draft.path) for draft in drafts)))
        return drafts


@dataclass(frozen=True, eq=False)
class Content:
    """What a bundle takes from a state: of all items, or of those whose table rows were touched.

    `embeddings` (2 + n, d) begin with the two special rows, and `vectors` (n, d) have none; both are in the order of
    `rows` (n,), table rows that items own, ascending. `touched` are all rows that were looked at and `left` the keys of
    items that have lost theirs; None where the content is whole, which has `drafts`. `version` is the bundle's name
    (`name_of`), `line` where that is to be; None: nowhere. `total` counts the items of the state, `described` says of a
    `snapshot` what is otherwise asked of the state.
    """

    state: TrainerState
    rows: TableRows
    embeddings: Floats
    vectors: Floats
    version: str
    line: Line | None
    total: int
    touched: TableRows | None = None
    left: ItemKeys | None = None
    drafts: Drafts | None = None
    described: Described | None = None

    @classmethod
    def of(cls, state: TrainerState, line: Line | None = None) -> "Content":
        """Read a whole state."""
        return cls._whole(state, line, name_of(state, at_all=True))

    @classmethod
    def _whole(cls, state: TrainerState, line: Line | None, version: str) -> "Content":
        drafts = Drafts.of(state, line, version)
        arrays = drafts.embeddings.mapped(), drafts.vectors.mapped()
        return cls(state, state.table.live, *arrays, version, line, len(state.table), drafts=drafts)

    @classmethod
    def since(cls, state: TrainerState, line: Line | None = None) -> "Content":
        """Read the rows that may differ from the bundle that `TrainerState.since` is about; all if too many left."""
        touched, left = state.touched.rows(Reader.BUNDLE), state.touched.left()
        if TOO_MANY in left:
            return cls.of(state, line)
        if state.featured is not None:
            touched = TableRows(ascending(np.concatenate([touched, state.since.items.moved(state.vectors.kept)])))
        rows = TableRows(touched[state.table.keys_of(touched) != PADDING_KEY])
        return cls(state, rows, *_read(state, rows), name_of(state), line, len(state.table), touched, left)

    @property
    def is_whole(self) -> bool:
        """Whether it holds all items."""
        return self.touched is None

    def whole(self) -> "Content":
        """Return the content of all items."""
        return self if self.is_whole else self._whole(self.state, self.line, self.version)

    def snapshot(self) -> "Content":
        """Return a whole content that stays what it is while the state goes on; another thread may read it."""
        return replace(self, described=Described.of(self))

    def assigned(self, clusters: Clusters, chosen: npt.NDArray[np.int64]) -> Assigned:
        """Return the nearest list of `chosen` items (m,); of many, ranks find them together."""
        workers, assigner = self.state.embeddings.workers, self.state.assigner
        is_alone = workers.world_size == 1 or self.described is not None
        if is_alone or self.drafts is None or len(chosen) < _SHARED:
            return clusters.assign(self.vectors, chosen)
        if workers.has_nodes:
            return assigner.assign_rows(TableRows(self.rows[chosen]), clusters.centroids())
        return assigner.assign(self.drafts.vectors.path, chosen, clusters.centroids())

    @cached_property
    def keys(self) -> ItemKeys:
        """The items' keys, (n,), which the table has; called as its `keys_of`."""
        if self.described is not None:
            return self.described.keys
        keys = zeros_in_scratch(len(self.rows), np.int64)
        for first in range(0, len(keys), _AT_ONCE):
            keys[first : first + _AT_ONCE] = self.state.table.keys_of(TableRows(self.rows[first : first + _AT_ONCE]))
        return ItemKeys(keys)

    def items(self, chosen: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return ``items.parquet`` (`BUNDLE_ITEMS_SCHEMA`) with the `chosen` items (m,) at index rows `rows` (m,)."""
        values: dict[str, Any] = {columns.ROW: rows.astype(np.int32)}
        if self.described is None:
            table, places = self.state.table, TableRows(self.rows[chosen])
            values[columns.ITEM_ID] = table.ids.of(places).tolist()
            values[columns.ITEM_KEY] = table.keys_of(places)
            values[columns.POPULARITY] = _popularity(self.state, places)
        else:
            values[columns.ITEM_ID] = self.described.ids.take(chosen)
            values[columns.ITEM_KEY] = self.described.keys[chosen]
            values[columns.POPULARITY] = self.described.popularity[chosen]
        return pa.table(values, schema=BUNDLE_ITEMS_SCHEMA)


def _popularity(state: TrainerState, rows: TableRows) -> npt.NDArray[np.float64]:
    """Return the decayed counts of rows (n,); called as `RowCounts`."""
    popularity: npt.NDArray[np.float64] = state.counts[torch.from_numpy(rows)].cpu().numpy()
    return popularity


@torch.no_grad()
def _read(state: TrainerState, rows: TableRows) -> tuple[Floats, Floats]:
    """Return the embeddings (2 + n, d) of the special rows and of `rows` (n,), and the vectors (n, d).

    Both are mapped files, which come piece by piece: no memory has to hold those of all ranks.
    """
    embeddings, vectors = (Spool(state.embeddings.weight.shape[1], np.float32) for _ in range(2))
    every = np.concatenate([np.arange(FIRST_ITEM), rows])
    # On the CPU, the vector of a row is the same, bit for bit, among however many others it is made, but not alone.
    for number, some in enumerate(np.array_split(every, -(-len(every) // _AT_ONCE))):
        piece = state.item_vectors(TableRows(some)).cpu()
        embeddings.append(array_of(piece))
        vectors.append(array_of(project(piece if number else piece[FIRST_ITEM:], state.config.tower)))
    return np.asarray(embeddings.finish()), np.asarray(vectors.finish())
