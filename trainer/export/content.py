"""The content of a bundle: what an export reads from the state, the bundle's name, and the check for finite numbers.

The name contains a digest of the state. A run that is killed after an export and repeats it makes the same bits, hence
the same name; other settings or another training give another name.
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


Floats = npt.NDArray[np.float32]

_AT_ONCE: Final = 1 << 16
"""Most rows fetched at a time: 16 MB with 64 dimensions."""

_SHARED: Final = 1 << 17
"""Least number of items for which ranks search lists together: for fewer, one rank is as fast as the query."""


def name_of(state: TrainerState, *, at_all: bool = False) -> str:
    """Return the bundle name of a state: its position in the stream and a digest.

    The fingerprint of the items is updated from the touched rows or, with `at_all`, from all rows. Collective, or
    called by rank 0 in `Workers.first`.
    """
    return f"{place_of(state)}-{_digest(state, state.since.fingerprint.look(at_all=at_all))}"


def place_of(state: TrainerState) -> str:
    """Return the first part of a bundle name: the trained window and the step, padded so that names sort by them."""
    at = state.position
    return f"{max(at.trained_sequence, 0):08d}-{at.step:010d}"


@torch.no_grad()
def _digest(state: TrainerState, fingerprint: int) -> str:
    """Return the digest in a bundle name: of settings, counts, models, special rows and the items' fingerprint."""
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


class Line(NamedTuple):
    """Where a bundle is written: the store and the variant."""

    store: Store
    variant: str

    def folder(self, version: str) -> str:
        """Return the folder of the bundle with this content version."""
        return f"bundles/{version_of(version, self.variant)}"


class Described(NamedTuple):
    """Copy of the columns of ``items.parquet`` for all items, (n,) each, in scratch files on disk."""

    keys: ItemKeys
    ids: Texts
    popularity: npt.NDArray[np.float64]

    @classmethod
    def of(cls, content: "Content") -> "Described":
        """Copy the columns of a whole content, in chunks. Collective, or called by rank 0 in `Workers.first`."""
        state, count = content.state, len(content.rows)
        popularity = zeros_in_scratch(count, np.float64)

        def ids() -> Iterator[pa.Array]:
            for first in range(0, count, _AT_ONCE):
                rows = TableRows(content.rows[first : first + _AT_ONCE])
                popularity[first : first + _AT_ONCE] = _popularity(state, rows)
                yield pa.array(state.table.ids.of(rows), pa.large_string())

        return cls(content.keys, Texts.spooled(ids(), count), popularity)


class Drafts(NamedTuple):
    """Unpublished array files of a complete bundle."""

    embeddings: ArrayDraft
    vectors: ArrayDraft

    @classmethod
    def of(cls, state: TrainerState, line: Line | None, version: str) -> "Drafts":
        """Let each rank write its own rows of the arrays. Collective, or called by rank 0 in `Workers.first`.

        Without a `line`, the files are in the folder for temporary files.
        """
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
    """Content of a bundle, read from a state: all items (whole), or the items with touched table rows.

    Attributes
    ----------
    rows
        Table rows of the items, (n,), ascending.
    embeddings, vectors
        Embeddings (2 + n, d), which start with the two special rows, and index vectors (n, d), in the order of `rows`.
    version
        Name of the bundle (`name_of`).
    line
        Where the bundle is written; None: nowhere.
    total
        Number of items of the state.
    touched, left
        Table rows examined, and keys of evicted items; None if the content is whole.
    drafts
        Files of `embeddings` and `vectors`, if the content is whole.
    described
        Columns of the items, read in advance for a `snapshot`; None: they are read from the state.
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
        """Read the rows that may differ from the newest published bundle (`TrainerState.since`).

        After more evictions than the state can list, all rows are read.
        """
        touched, left = state.touched.rows(Reader.BUNDLE), state.touched.left()
        if TOO_MANY in left:
            return cls.of(state, line)
        if state.featured is not None:
            touched = TableRows(ascending(np.concatenate([touched, state.since.items.moved(state.vectors.kept)])))
        rows = TableRows(touched[state.table.keys_of(touched) != PADDING_KEY])
        return cls(state, rows, *_read(state, rows), name_of(state), line, len(state.table), touched, left)

    @property
    def is_whole(self) -> bool:
        """Whether the content has all items."""
        return self.touched is None

    def whole(self) -> "Content":
        """Return a content of all items: this one if it is whole, else one read from the state."""
        return self if self.is_whole else self._whole(self.state, self.line, self.version)

    def snapshot(self) -> "Content":
        """Return a copy of a whole content that does not change with the state, so that another thread may read it."""
        return replace(self, described=Described.of(self))

    def assigned(self, clusters: Clusters, chosen: npt.NDArray[np.int64]) -> Assigned:
        """Return the nearest list of each of the `chosen` items (m,); many items are assigned by all ranks together."""
        workers, assigner = self.state.embeddings.workers, self.state.assigner
        is_alone = workers.world_size == 1 or self.described is not None
        if is_alone or self.drafts is None or len(chosen) < _SHARED:
            return clusters.assign(self.vectors, chosen)
        if workers.has_nodes:
            return assigner.assign_rows(TableRows(self.rows[chosen]), clusters.centroids())
        return assigner.assign(self.drafts.vectors.path, chosen, clusters.centroids())

    @cached_property
    def keys(self) -> ItemKeys:
        """Keys of the items, (n,). Collective, or called by rank 0 in `Workers.first`."""
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
    """Return the decayed counts of table rows (n,). Collective, or called by rank 0 in `Workers.first`."""
    popularity: npt.NDArray[np.float64] = state.counts[torch.from_numpy(rows)].cpu().numpy()
    return popularity


@torch.no_grad()
def _read(state: TrainerState, rows: TableRows) -> tuple[Floats, Floats]:
    """Return the embeddings (2 + n, d) of the special rows and `rows` (n,), and the index vectors (n, d) of `rows`.

    Both are memory-mapped files, written in chunks, since they may be larger than the memory.
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
    """Return a sentence that names a parameter or optimiser tensor with NaN, infinity or an infinite norm, or None.

    All rows of the table are checked, or only the touched `rows` (n,), if all other rows were checked before.
    """
    for name, norm in _norms(state, rows).items():
        # A norm is finite only if every number is; an overflowing norm means that the next step overflows, too.
        if not bool(norm.isfinite()):
            return f"{name} contains NaN or infinity, or its norm overflows"
    return None


def fault_of_items(content: Content) -> str | None:
    """Return a sentence if the embeddings or vectors of a content contain NaN or infinity; None if all are finite."""
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        if not is_finite(array):
            return f"its {name} contain NaN or infinity"
    return None


def _norms(state: TrainerState, rows: TableRows | None) -> dict[str, Tensor]:
    """Return the norm of every floating-point tensor that training depends on, by name.

    The norms of the table cover the given `rows` (n,), or all rows.
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
