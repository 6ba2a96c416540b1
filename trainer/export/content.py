"""Content of an export, read from a state: all items, as files of the bundle, or the touched items only."""

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
"""Most rows fetched at a time: 16 MB with 64 dimensions."""

_SHARED: Final = 1 << 17
"""Least number of items for which ranks search lists together: for fewer, one rank is as fast as the query."""


class Line(NamedTuple):
    """Target of a bundle: the store and the variant."""

    store: Store
    variant: str

    def folder(self, version: str) -> str:
        """Return the folder of the bundle with this content version."""
        return f"bundles/{version_of(version, self.variant)}"


class Described(NamedTuple):
    """Columns of ``items.parquet`` for all items, (n,) each, on disk."""

    keys: ItemKeys
    ids: Texts
    popularity: npt.NDArray[np.float64]

    @classmethod
    def of(cls, content: "Content") -> "Described":
        """Read them for a content of all items, in chunks; called as `Embeddings.fetch`."""
        state, count = content.state, len(content.rows)
        popularity = zeros_in_scratch(count, np.float64)

        def ids() -> Iterator[pa.Array]:
            for first in range(0, count, _AT_ONCE):
                rows = TableRows(content.rows[first : first + _AT_ONCE])
                popularity[first : first + _AT_ONCE] = _popularity(state, rows)
                yield pa.array(state.table.ids.of(rows), pa.large_string())

        return cls(content.keys, Texts.spooled(ids(), count), popularity)


class Drafts(NamedTuple):
    """Unpublished arrays of a complete bundle."""

    embeddings: ArrayDraft
    vectors: ArrayDraft

    @classmethod
    def of(cls, state: TrainerState, line: Line | None, version: str) -> "Drafts":
        """Let all ranks write the arrays, each its own rows; called as `Embeddings.fetch`."""
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
    """Content of a bundle, read from a state: all items, or those with touched table rows.

    `embeddings` (2 + n, d) start with the two special rows, `vectors` (n, d) do not; both are in the order of
    `rows` (n,), table rows in use, ascending. `touched` are all rows examined and `left` the evicted keys; None if the
    content is whole, which has `drafts`. `version` is the bundle's name (`name_of`), `line` its target; None: none.
    `total` is the number of items of the state; `described` replaces queries to the state for a `snapshot`.
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
        """Read all items of a state."""
        return cls._whole(state, line, name_of(state, at_all=True))

    @classmethod
    def _whole(cls, state: TrainerState, line: Line | None, version: str) -> "Content":
        drafts = Drafts.of(state, line, version)
        arrays = drafts.embeddings.mapped(), drafts.vectors.mapped()
        return cls(state, state.table.live, *arrays, version, line, len(state.table), drafts=drafts)

    @classmethod
    def since(cls, state: TrainerState, line: Line | None = None) -> "Content":
        """Read the rows that may differ from the bundle of `TrainerState.since`; all rows after too many evictions."""
        touched, left = state.touched.rows(Reader.BUNDLE), state.touched.left()
        if TOO_MANY in left:
            return cls.of(state, line)
        if state.featured is not None:
            touched = TableRows(ascending(np.concatenate([touched, state.since.items.moved(state.vectors.kept)])))
        rows = TableRows(touched[state.table.keys_of(touched) != PADDING_KEY])
        return cls(state, rows, *_read(state, rows), name_of(state), line, len(state.table), touched, left)

    @property
    def is_whole(self) -> bool:
        """Whether it contains all items."""
        return self.touched is None

    def whole(self) -> "Content":
        """Return the content of all items."""
        return self if self.is_whole else self._whole(self.state, self.line, self.version)

    def snapshot(self) -> "Content":
        """Return a whole content that does not change with the state; another thread may read it."""
        return replace(self, described=Described.of(self))

    def assigned(self, clusters: Clusters, chosen: npt.NDArray[np.int64]) -> Assigned:
        """Return the nearest list of `chosen` items (m,); for many items, with all ranks."""
        workers, assigner = self.state.embeddings.workers, self.state.assigner
        is_alone = workers.world_size == 1 or self.described is not None
        if is_alone or self.drafts is None or len(chosen) < _SHARED:
            return clusters.assign(self.vectors, chosen)
        if workers.has_nodes:
            return assigner.assign_rows(TableRows(self.rows[chosen]), clusters.centroids())
        return assigner.assign(self.drafts.vectors.path, chosen, clusters.centroids())

    @cached_property
    def keys(self) -> ItemKeys:
        """Keys of the items, (n,); called as the table's `keys_of`."""
        if self.described is not None:
            return self.described.keys
        keys = zeros_in_scratch(len(self.rows), np.int64)
        for first in range(0, len(keys), _AT_ONCE):
            keys[first : first + _AT_ONCE] = self.state.table.keys_of(TableRows(self.rows[first : first + _AT_ONCE]))
        return ItemKeys(keys)

    def items(self, chosen: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> pa.Table:
        """Return ``items.parquet`` (`BUNDLE_ITEMS_SCHEMA`) for `chosen` items (m,) at index rows `rows` (m,)."""
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
    """Return the embeddings (2 + n, d) of the special rows and `rows` (n,), and the vectors (n, d).

    Both are memory-mapped files, written in chunks: they need not fit in memory.
    """
    embeddings, vectors = (Spool(state.embeddings.weight.shape[1], np.float32) for _ in range(2))
    every = np.concatenate([np.arange(FIRST_ITEM), rows])
    # On the CPU, a vector has the same bits in any batch of two or more rows, but not alone.
    for number, some in enumerate(np.array_split(every, -(-len(every) // _AT_ONCE))):
        piece = state.item_vectors(TableRows(some)).cpu()
        embeddings.append(array_of(piece))
        vectors.append(array_of(project(piece if number else piece[FIRST_ITEM:], state.config.tower)))
    return np.asarray(embeddings.finish()), np.asarray(vectors.finish())
