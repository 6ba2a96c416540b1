"""What an export reads of a state, the identity of the bundle that follows from it, and whether its numbers are finite.

A run killed after an export makes the same bits again, hence the same name; other settings or another training give
another name, whatever the store contains.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import xxhash
from torch import Tensor

from weir.contracts import BUNDLE_ITEMS_SCHEMA, PADDING_KEY, BundleFile, ItemKeys, Store
from weir.contracts.base import columns
from weir.contracts.base.arrays import ascending
from weir.contracts.base.string_arrays import Texts, zeros_in_scratch
from weir.contracts.bundles.files import is_finite
from weir.contracts.bundles.variants import version_of
from weir.contracts.storage.array_files import ArrayDraft
from weir.trainer.export.index import Clusters
from weir.trainer.items.rows import FIRST_ITEM, Reader, TableRows
from weir.trainer.items.table import TOO_MANY
from weir.trainer.settings.trainer import RescoringConfig
from weir.trainer.state.assigner import Assigned
from weir.trainer.state.items import ItemPaths
from weir.trainer.state.tensor_files import Stateful, array_of, flatten
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shuffling import Spool
from weir.trainer.towers import project

__all__ = ["Content", "Line", "fault_of", "fault_of_items", "name_of", "place_of"]


_DIGITS: Final = 8
"""Hexadecimal digits of the digest in a name: it must only distinguish bundles of one position in the stream."""

_UNNAMED: Final[dict[str, object]] = {
    "precision": "float32",
    "optimizer.embedding_memory": 1.0,
    "optimizer.embedding_decay": 0.0,
    "optimizer.embedding_scale": 1.0,
} | {f"rescoring.{name}": value for name, value in RescoringConfig().model_dump(exclude={"candidates"}).items()}
"""Settings that the digest omits if they have these values, by the names of `TrainerConfig.defining`."""


def name_of(state: TrainerState, *, at_all: bool = False) -> str:
    """Return the bundle name of a state; called as `Fingerprint.look`, with `at_all` over all rows."""
    return f"{place_of(state)}-{_digest(state, state.since.fingerprint.look(at_all=at_all))}"


def place_of(state: TrainerState) -> str:
    """Return the prefix of a name for the stream position; names sort by it."""
    at = state.position
    return f"{max(at.trained_sequence, 0):08d}-{at.step:010d}"


@torch.no_grad()
def _digest(state: TrainerState, fingerprint: int) -> str:
    digest = xxhash.xxh3_128()
    unused = () if state.config.rescoring.on else ("rescoring.",)
    defining = state.config.defining().items()
    named = [item for item in defining if item not in _UNNAMED.items() and not item[0].startswith(unused)]
    settings = dict(named) | {"index": state.config.index, "nprobe": state.config.nprobe}
    # The total distinguishes counts that were read from the sketch at different times.
    counted = {"time_ms": state.frequencies.time_ms, "log_total": state.counts.log_total}
    digest.update(json.dumps(settings | counted | {"items": fingerprint}, sort_keys=True).encode())
    served: dict[str, Stateful] = {"tower": state.tower, "frequencies": state.frequencies}
    if state.second is not None:
        served["scorer"] = state.second.scorer
    if state.featured is not None:
        # Feature values by item are omitted: they affect the trained weights.
        digest.update(state.featured.weights.encode())
    if state.featured_users is not None:
        digest.update(state.featured_users.weights.encode())
    for name, value in sorted(flatten(served).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array_of(value)).data)
    special = state.item_vectors(TableRows(np.arange(FIRST_ITEM)))
    digest.update(np.ascontiguousarray(array_of(special)).data)
    return str(digest.hexdigest()[:_DIGITS])


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


@torch.no_grad()
def fault_of(state: TrainerState, rows: TableRows | None = None) -> str | None:
    """Return which parameters or optimiser state are NaN or infinite, or have an infinite norm; None if all are finite.

    Of the table, all rows are checked, or only the touched `rows` (n,): the others were checked before.
    """
    for name, norm in _norms(state, rows).items():
        # A norm is finite only if every number is; an overflowing norm means that the next step overflows, too.
        if not bool(norm.isfinite()):
            return f"{name} contains NaN or infinity, or its norm overflows"
    return None


def fault_of_items(content: Content) -> str | None:
    """Return which of a content's embeddings and vectors are NaN or infinite; None if all are finite."""
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        if not is_finite(array):
            return f"its {name} contain NaN or infinity"
    return None


def _norms(state: TrainerState, rows: TableRows | None) -> dict[str, Tensor]:
    """Return the norm of every floating-point tensor that training depends on, by name.

    Norms of the table cover the given `rows` (n,), or all.
    """
    parts: dict[str, Stateful] = {"tower": state.tower, "optimizer": state.optimizer}
    if state.featured is not None:
        parts["features"] = state.featured.tower
    if state.featured_users is not None:
        parts["user_features"] = state.featured_users.tower
    if state.second is not None:
        parts["rescoring"] = state.second.scorer
        parts["rescoring_optimizer"] = state.second.optimizer
    table = state.embeddings.norms(rows)
    others = {name: value for name, value in flatten(parts).items() if value.is_floating_point()}
    return {f"embeddings.{name}": norm for name, norm in table.items()} | {
        name: torch.linalg.vector_norm(value) for name, value in others.items()
    }
