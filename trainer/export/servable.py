"""A bundle that answers queries as the server does: ids, tower and index, read from its files."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
import onnxruntime

from weir.contracts import BundleFile, BundleLog, BundleManifest, IndexRows
from weir.contracts.bundle_delta import BundleDelta
from weir.contracts.bundle_files import BundleFiles, MappedFiles
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.feature_weights import FeatureWeights
from weir.trainer.export.cases import Cases
from weir.trainer.export.searched import Searched, searched_in

__all__ = ["Servable"]

_ROWS: Final = 256

_QUERIES: Final = 32
"""Newest cases on which the index is compared with exact search: enough to detect a loss of a few hundredths."""

_DEPTH: Final = 100
"""Best items per case for that comparison."""

_SCANNED: Final = 1 << 14
"""Rows that the exact search compares at a time: their vectors fit in the processor's cache."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Servable:
    """An opened bundle that answers queries."""

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

        If the bundle is among the `known` ones, it is returned; if it builds on one of them, only the deltas since are
        read. Vectors, embeddings and lists of a complete bundle are memory-mapped.
        """
        start, *deltas = log.chain(manifest, [one.manifest for one in known])
        first = next((one for one in known if one.manifest == start), None)
        if first is not None and not deltas:
            return first
        if first is not None:
            rows, index = first.rows, first.index
        else:
            whole = MappedFiles(log, start)
            opened = partial(whole.opened, BundleFile.INDEX, searched_in)
            rows, index = whole.each(partial(BundleRows.read, whole), opened)
        for files in (BundleFiles(log, one) for one in deltas):
            delta = BundleDelta.read(files)
            rows = rows.changed(files, delta)
            index = files.guarded(BundleFile.LISTS, partial(index.changed, delta))
        last = BundleFiles(log, manifest)
        scorer = last.decode(BundleFile.SCORER, _session) if last.has(BundleFile.SCORER) else None
        said = last.has(BundleFile.USER_FEATURES)
        features = last.decode(BundleFile.USER_FEATURES, FeatureWeights.decode) if said else None
        return cls(manifest, last.decode(BundleFile.TOWER, _session), index, rows, scorer, features)

    def index_recall(self, cases: Cases) -> float:
        """Return the share of the exact best items that the index finds, over the newest of the cases."""
        users = self._users(cases.take(slice(-_QUERIES, None)))
        depth = min(_DEPTH, self.manifest.items)
        _, found = self.index.search(users, depth)
        exact = self._best(users, depth)
        shares = [len(np.intersect1d(wanted, got)) / depth for wanted, got in zip(exact, found, strict=True)]
        return float(np.mean(shares))

    def _best(self, users: Floats, depth: int) -> IndexRows:
        """Return the rows of the exact best items for users (n, d), (n, depth), without a copy of all vectors."""
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

        The last result is cached: trial and gate test the promoted bundle on the same cases.
        """
        for asked, cutoff, answer in self._answered:
            if asked is cases and cutoff == k:
                return answer
        parts = [cases.take(slice(first, first + _ROWS)) for first in range(0, len(cases), _ROWS)]
        found = np.concatenate([np.empty(0, np.bool_), *(self._hits(part, k) for part in parts)])
        self._answered[:] = [(cases, k, found)]
        return found

    def _hits(self, cases: Cases, k: int) -> npt.NDArray[np.bool_]:
        rows = self._found(self._users(cases), k)
        wanted = self.rows.item_rows.look_up(cases.items)
        hit: npt.NDArray[np.bool_] = (rows == wanted[:, None]).any(1) & (wanted >= 0)
        return hit

    def _found(self, users: Floats, k: int) -> IndexRows:
        """Return the result rows (n, k) for users (n, d); -1 past the end."""
        wanted = min(max(k, self.manifest.rescored or 0), self.manifest.items)
        _, rows = self.index.search(users, wanted)
        if self.scorer is None:
            return rows
        known, places = np.unique(rows.clip(min=0), return_inverse=True)
        asked = {"user": users, "items": self.rows.vectors[known], "candidates": places.reshape(rows.shape)}
        (scores,) = self.scorer.run(["score"], asked)
        best = np.argsort(-np.where(rows < 0, -np.inf, scores), axis=1, kind="stable")[:, :k]
        return IndexRows(np.take_along_axis(rows, best, 1))

    def _users(self, cases: Cases) -> Floats:
        """Return the query vectors (n, d) of users."""
        manifest = self.manifest
        rows, mask = self.rows.item_rows.tower_inputs(cases.histories, manifest.newest, manifest.history_length)
        (users,) = self.tower.run(["user"], {"history": self.rows.embeddings[rows], "mask": mask})
        if self.features is not None:
            users = users + cases.features.said(self.features)
        if self.manifest.metric == "cosine":
            users = users / np.maximum(np.linalg.norm(users, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.ascontiguousarray(users, np.float32)


def _session(data: bytes) -> onnxruntime.InferenceSession:
    """Return an ONNX session as in the server, but with one thread, since the ranks of a machine share its cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
