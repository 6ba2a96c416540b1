"""A bundle in memory that answers queries as a server would, and the events on which bundles are compared.

The newest, the promoted and the confirmed bundle are searched at the same time, and mostly build on each other. An
IVF index is therefore never copied: a later version adds a small index of its new rows, and excludes outdated rows of
the old index from the search. Both parts search the same lists, so together they find the same rows as one index, up to
ties.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

import faiss
import numpy as np
import numpy.typing as npt
import onnxruntime

from weir.contracts import (
    BundleFile,
    BundleLog,
    BundleManifest,
    CorruptArtefactError,
    IndexRows,
    ItemKeys,
    RetiredError,
    Store,
    WindowLog,
    WindowManifest,
)
from weir.contracts.base.arrays import Layers
from weir.contracts.base.statistics import GATE_CASES
from weir.contracts.bundles.faiss_index import (
    apply_delta,
    is_graph,
    takes_deltas,
    widen_walks,
    with_row_ids,
    without_rows,
)
from weir.contracts.bundles.files import BundleFiles, MappedFiles
from weir.contracts.bundles.rows import BundleDelta, BundleRows
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.commits.retention_horizon import GATE_WINDOWS
from weir.contracts.interactions.features import FeatureWeights
from weir.trainer.export.index import filled
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.positives import Positives, SharedWindow
from weir.trainer.towers.user_features import Layout, UserLines

__all__ = [
    "ENOUGH",
    "MOST",
    "Cases",
    "Found",
    "ListSearch",
    "RecentCases",
    "Searched",
    "Servable",
    "searched",
    "searched_in",
]


logger = logging.getLogger(__name__)

MOST: Final = 1000
"""Most cases per window: more cases would take time and hardly change the result."""

ENOUGH: Final = GATE_CASES
"""Least number of cases for a decision; smaller windows are pooled up to it."""


_faiss: Any = faiss  # its stubs lack some names

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Found = tuple[Floats, IndexRows]
"""Results of n queries: scores (n, k), descending, and index rows (n, k), -1 after the last result."""

_ROWS: Final = 256
"""Cases answered at a time."""

_QUERIES: Final = 32
"""Newest cases on which the index is compared with exact search: enough to detect a loss of a few hundredths."""

_DEPTH: Final = 100
"""Best items per case in the comparison with exact search."""

_SCANNED: Final = 1 << 14
"""Rows that the exact search compares at a time: their vectors fit in the processor's cache."""


class Cases(NamedTuple):
    """Positive events on which bundles are tested.

    `items` (n,) are the items of the events, `histories` (n, L) the users' items before, oldest first, and `features`
    (n,) the users' features.
    """

    items: ItemKeys
    histories: ItemKeys
    features: UserLines

    def __len__(self) -> int:
        return len(self.items)

    def take(self, chosen: slice | npt.NDArray[np.int64]) -> "Cases":
        """Return the `chosen` cases."""
        return Cases(ItemKeys(self.items[chosen]), ItemKeys(self.histories[chosen]), self.features.take(chosen))


@dataclass
class RecentCases:
    """Up to `MOST` cases of each of the newest windows, in memory; read from the store after a restart.

    The sample of a window depends only on the seed and the window, so a restarted run has the same cases.
    """

    store: Store
    config: TrainerConfig
    _cases: dict[int, Cases] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log = WindowLog(self.store)

    def note(self, manifest: WindowManifest, drawn: Positives) -> Cases:
        """Add and return the cases of the next window, and drop old cases that `up_to` no longer needs.

        `drawn` are up to `MOST` positives of the window, from `SharedWindow.sampled`.
        """
        self._cases[manifest.sequence] = cases = self._of(manifest, drawn)
        sequence, count = manifest.sequence, 0
        while sequence in self._cases and count < ENOUGH:
            count += len(self._cases[sequence])
            sequence -= 1
        self._cases = {number: part for number, part in self._cases.items() if number > sequence}
        return cases

    def up_to(self, sequence: int) -> Cases:
        """Return the cases of the window `sequence` and of earlier windows, until there are `ENOUGH` cases."""
        parts: list[Cases] = []
        last = max(sequence - GATE_WINDOWS, -1)
        while sequence > last and sum(map(len, parts)) < ENOUGH:
            if sequence not in self._cases and not self._read(sequence):
                break
            parts.append(self._cases[sequence])
            sequence -= 1
        if not parts:
            no_histories = np.empty((0, self.config.tower.history_length), np.int64)
            return Cases(ItemKeys(np.empty(0, np.int64)), ItemKeys(no_histories), UserLines.nothing(0))
        if len(parts) == 1:
            return parts[0]
        items = np.concatenate([part.items for part in parts])
        features = UserLines.joined([part.features for part in parts])
        return Cases(ItemKeys(items), _joined([part.histories for part in parts]), features)

    def _read(self, sequence: int) -> bool:
        """Read a window's cases from the store; return False if the window is missing or cannot be read."""
        try:
            manifest = next(iter(self._log.next(sequence - 1)), None)
            if manifest is None or manifest.sequence != sequence:
                return False
            # The other ranks wait or train meanwhile, so this rank reads the whole window.
            shared = SharedWindow.read(self._log, manifest, self.config, Workers())
        except (CorruptArtefactError, FileNotFoundError, LogMismatchError, RetiredError) as error:
            logger.warning("bundles are compared without the cases of window %d and before: %s", sequence, error)
            return False
        drawn = shared.sampled(self.config.seed, sequence, MOST)
        self._cases[sequence] = self._of(manifest, drawn)
        return True

    def _of(self, manifest: WindowManifest, drawn: Positives) -> Cases:
        layout = Layout.of(manifest.user_features, self.config.features.buckets)
        return Cases(drawn.items, drawn.histories, UserLines(layout, drawn.features))


def _joined(histories: list[ItemKeys]) -> ItemKeys:
    """Concatenate histories (n, L) of different lengths L, padded on the left."""
    length = max(part.shape[1] for part in histories)
    padded = [np.pad(part, ((0, 0), (length - part.shape[1], 0))) for part in histories]
    return ItemKeys(np.concatenate(padded))


class Searched(Protocol):
    """The search index of one version of a bundle."""

    def search(self, queries: Floats, k: int) -> Found:
        """Return the best `k` rows for each of the queries (n, d)."""

    def changed(self, delta: BundleDelta) -> "Searched":
        """Return the index after a delta (`apply_delta`), without changing this index."""

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        """Return a single FAISS index of the rows in use, `live` (m,), given the vectors (n, d) of all rows."""


def searched(index: Any) -> Searched:
    """Return the search index of a complete bundle."""
    has_lists = faiss.try_extract_index_ivf(index) is not None
    return ListSearch.of(index) if has_lists and takes_deltas(index) else _Copied(index)


def searched_in(path: Path) -> Searched:
    """Read the search index of a complete bundle from a file; the lists of an IVF index are memory-mapped."""
    index = searched(_faiss.read_index(str(path), _faiss.IO_FLAG_MMAP_IFC))
    # An index that is copied for changes must not be mapped: its copies would be too, and FAISS aborts when they grow.
    return index if isinstance(index, ListSearch) else searched(_faiss.read_index(str(path)))


@dataclass(frozen=True, eq=False)
class _Copied:
    """A FAISS index of any kind that is copied for each change."""

    index: Any

    def search(self, queries: Floats, k: int) -> Found:
        if is_graph(self.index):
            widen_walks(self.index, k)
        scores, rows = self.index.search(queries, k)
        return scores, IndexRows(rows)

    def changed(self, delta: BundleDelta) -> Self:
        index = with_row_ids(faiss.clone_index(with_row_ids(self.index)))
        apply_delta(index, delta)
        return type(self)(index)

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        # Only a flat index accepts deltas and has no lists.
        index: Any = faiss.IndexFlat(self.index.d, self.index.metric_type)
        if len(live) < len(vectors):
            index = with_row_ids(index)
            index.add_with_ids(vectors[live], live)
        else:
            index.add(vectors[live])
        return index


@dataclass(frozen=True, eq=False)
class ListSearch:
    """An IVF index in two immutable parts, which are searched together.

    `base` is the index of a complete bundle, and `over` an index of the rows changed since, with all lists, including
    appended ones. `outdated` is a bit mask of the rows of `base` that are excluded from the search.
    """

    base: Any
    over: Any
    outdated: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, index: Any) -> Self:
        """Wrap the IVF index of a complete bundle."""
        return cls(index, without_rows(index), np.zeros(-(-index.ntotal // 8), np.uint8))

    def empty(self) -> Any:
        """Return a trained index with all lists and no items."""
        return without_rows(self.over)

    def search(self, queries: Floats, k: int) -> Found:
        """Return the best `k` rows for each of the queries (n, d)."""
        scores, lists = self.over.quantizer.search(queries, self.over.nprobe)
        in_base = np.where(lists < self.base.nlist, lists, -1)
        current = _faiss.IDSelectorNot(_faiss.IDSelectorBitmap(self.outdated))
        only_current = _faiss.SearchParametersIVF(sel=current, nprobe=self.over.nprobe)
        parts = [
            _search_lists(self.over, queries, k, (lists, scores)),
            _search_lists(self.base, queries, k, (in_base, scores), only_current),
        ]
        both, rows = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        best = np.argsort(-both, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(both, best, 1), IndexRows(np.take_along_axis(rows, best, 1))

    def changed(self, delta: BundleDelta) -> Self:
        """Return the index after a delta; shares `base` with this index. Raises as `apply_delta`."""
        over: Any = faiss.clone_index(self.over)
        apply_delta(over, delta)
        rows, outdated = np.concatenate([delta.rows, delta.removed]), self.outdated.copy()
        old = rows[rows < 8 * len(outdated)]
        np.bitwise_or.at(outdated, old // 8, np.left_shift(1, old % 8).astype(np.uint8))
        return type(self)(self.base, over, outdated)

    def merged(self, vectors: Layers[np.float32], live: Rows) -> Any:
        """Return a single FAISS index with the same rows in the same lists; see `Searched.merged`."""
        return filled(self.empty(), live, self.lists_of(len(vectors))[live], vectors)

    def lists_of(self, rows: int) -> npt.NDArray[np.int32]:
        """Return the lists of the rows 0 to `rows` - 1; -1 for rows that are not in the index."""
        lists = np.full(rows, -1, np.int32)
        _note_lists(lists, self.base)
        lists[np.flatnonzero(np.unpackbits(self.outdated, bitorder="little")[:rows])] = -1
        _note_lists(lists, self.over)
        return lists


def _search_lists(
    index: Any, queries: Floats, k: int, coarse: tuple[npt.NDArray[np.int64], Floats], parameters: Any = None
) -> Found:
    """Return the best `k` rows for each of the queries (n, d) in given lists of an IVF index.

    `coarse` are the lists to search for each query, (n, nprobe), -1 for none, and the scores of their centroids. The
    Python wrapper of FAISS does not accept search parameters with given lists.
    """
    scores, rows = np.empty((len(queries), k), np.float32), IndexRows(np.empty((len(queries), k), np.int64))
    arrays = map(_faiss.swig_ptr, (np.ascontiguousarray(queries, np.float32), *coarse, scores, rows))
    at, lists_at, coarse_at, scores_at, rows_at = arrays
    index.search_preassigned_c(len(queries), at, k, lists_at, coarse_at, scores_at, rows_at, False, parameters)  # noqa: FBT003
    return scores, rows


def _note_lists(lists: npt.NDArray[np.int32], index: Any) -> None:
    """Write the list of each row of an IVF index to `lists`, which is indexed by row."""
    for number in range(index.nlist):
        if size := index.invlists.list_size(number):
            lists[faiss.rev_swig_ptr(index.invlists.get_ids(number), size)] = number


@dataclass(frozen=True, eq=False)
class Servable:
    """A bundle in memory that answers queries."""

    manifest: BundleManifest
    tower: onnxruntime.InferenceSession
    index: Searched
    rows: BundleRows
    scorer: onnxruntime.InferenceSession | None = None
    features: FeatureWeights | None = None
    _answered: list[tuple[Cases, int, npt.NDArray[np.bool_]]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def open(cls, log: BundleLog, manifest: BundleManifest, known: "Collection[Servable]" = ()) -> "Servable":
        """Read a bundle's files; raises `CorruptArtefactError` for a damaged or unusable file.

        `known` are bundles in memory: if one of them has this manifest, it is returned; if the bundle builds on one of
        them, only the later deltas are read. Vectors, embeddings and lists of a complete bundle are memory-mapped.
        """
        start, *deltas = log.chain(manifest, [servable.manifest for servable in known])
        first = next((servable for servable in known if servable.manifest == start), None)
        if first is not None and not deltas:
            return first
        if first is not None:
            rows, index = first.rows, first.index
        else:
            whole = MappedFiles(log, start)
            opened = partial(whole.opened, BundleFile.INDEX, searched_in)
            rows, index = whole.each(partial(BundleRows.read, whole), opened)
        for files in (BundleFiles(log, delta) for delta in deltas):
            delta = BundleDelta.read(files)
            rows = rows.changed(files, delta)
            index = files.guarded(BundleFile.LISTS, partial(index.changed, delta))
        last = BundleFiles(log, manifest)
        scorer = last.decode(BundleFile.SCORER, _session) if last.has(BundleFile.SCORER) else None
        has_features = last.has(BundleFile.USER_FEATURES)
        features = last.decode(BundleFile.USER_FEATURES, FeatureWeights.decode) if has_features else None
        return cls(manifest, last.decode(BundleFile.TOWER, _session), index, rows, scorer, features)

    def index_recall(self, cases: Cases) -> float:
        """Return the share of the exact 100 best items that the index finds, over the 32 newest of the cases."""
        users = self._users(cases.take(slice(-_QUERIES, None)))
        depth = min(_DEPTH, self.manifest.items)
        _, rows = self.index.search(users, depth)
        exact = self._best(users, depth)
        shares = [len(np.intersect1d(best, got)) / depth for best, got in zip(exact, rows, strict=True)]
        return float(np.mean(shares))

    def _best(self, users: Floats, depth: int) -> IndexRows:
        """Return the rows (n, depth) of the exact best items for queries (n, d), without a copy of all vectors."""
        live = self.rows.live
        scores: Floats = np.empty((len(users), 0), np.float32)
        rows = IndexRows(np.empty((len(users), 0), np.int64))
        for first in range(0, len(live), _SCANNED):
            some = live[first : first + _SCANNED]
            found = faiss.knn(users, self.rows.vectors[some], min(depth, len(some)), metric=faiss.METRIC_INNER_PRODUCT)
            scores, rows = np.hstack([scores, found[0]]), IndexRows(np.hstack([rows, some[found[1]]]))
            best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            scores, rows = np.take_along_axis(scores, best, 1), IndexRows(np.take_along_axis(rows, best, 1))
        return rows

    def hits(self, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        """Return whether each case's item is among the first `k` results for its history, (n,).

        The last result is cached: canary and gate test the promoted bundle on the same cases.
        """
        for answered, cutoff, hits in self._answered:
            if answered is cases and cutoff == k:
                return hits
        parts = [cases.take(slice(first, first + _ROWS)) for first in range(0, len(cases), _ROWS)]
        hits = np.concatenate([np.empty(0, np.bool_), *(self._hits(part, k) for part in parts)])
        self._answered[:] = [(cases, k, hits)]
        return hits

    def _hits(self, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        rows = self._results(self._users(cases), k)
        expected = self.rows.item_rows.look_up(cases.items)
        hit: npt.NDArray[np.bool_] = (rows == expected[:, None]).any(1) & (expected >= 0)
        return hit

    def _results(self, users: Floats, k: int) -> IndexRows:
        """Return the result rows (n, k) for query vectors (n, d), with re-scoring, if any; -1 past the end."""
        depth = min(max(k, self.manifest.rescored or 0), self.manifest.items)
        _, rows = self.index.search(users, depth)
        if self.scorer is None:
            return rows
        distinct, places = np.unique(rows.clip(min=0), return_inverse=True)
        inputs = {"user": users, "items": self.rows.vectors[distinct], "candidates": places.reshape(rows.shape)}
        (scores,) = self.scorer.run(["score"], inputs)
        best = np.argsort(-np.where(rows < 0, -np.inf, scores), axis=1, kind="stable")[:, :k]
        return IndexRows(np.take_along_axis(rows, best, 1))

    def _users(self, cases: Cases) -> Floats:
        """Return the query vectors (n, d) of the cases' users."""
        manifest = self.manifest
        rows, mask = self.rows.item_rows.tower_inputs(cases.histories, manifest.newest, manifest.history_length)
        (users,) = self.tower.run(["user"], {"history": self.rows.embeddings[rows], "mask": mask})
        if self.features is not None:
            users = users + cases.features.said(self.features)
        if self.manifest.metric == "cosine":
            users = users / np.maximum(np.linalg.norm(users, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.ascontiguousarray(users, np.float32)


def _session(data: bytes) -> onnxruntime.InferenceSession:
    """Return an ONNX session on one thread of the CPU, since the ranks of a machine share its cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
