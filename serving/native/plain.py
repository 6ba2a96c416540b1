"""Answers a batch of plain requests (`weir.serving.native`) by one tower run and one search, on columns throughout.

The results equal those of `weir.serving.search.retriever`, which answers the batch instead if items are blocked or
cold, or if there is a second phase.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import faiss
import numpy as np

from weir.contracts import UserKeys
from weir.contracts.bundles.rows import FIRST_ITEM_ROW
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.native.columns import F32, I64, Bools, Compiled, Found, Kind, Wanted
from weir.serving.search.queries import Answer, ByEmbedding, ByHistory, Hits, Source, Task
from weir.serving.search.retriever import Retriever, lists_beyond, nearest

__all__ = ["PlainRetriever"]


class _Read(NamedTuple):
    """n queries as index rows: `rows` (keys,) has the row of each key, -1 for unknown items, 0 for users.

    `own` (n,) is the row of the item in a query for similar items, -1 for other queries. `inputs` and `mask` are the
    tower's inputs.
    """

    rows: I64
    own: I64
    inputs: I64
    mask: Bools


@dataclass(frozen=True)
class PlainRetriever:
    """Answers plain requests, given as columns, in the batcher's thread: by a single search (`flat`), or as tasks."""

    retriever: Retriever
    compiled: Compiled

    def is_flat(self, bundle: LoadedBundle, wanted: Wanted) -> bool:
        """Return whether a single search without filters answers the queries.

        That is so if no item is blocked, there are no cold items, the default lists hold enough rows despite one
        excluded item, and there is no re-scoring.
        """
        tagged = bundle.state.view
        if self.retriever.candidates(bundle):
            return False
        has_cold = tagged is not None and tagged.cold is not None and len(tagged.cold) > 0
        if has_cold or self.retriever.eligibility(bundle, tagged).blocked:
            return False
        return not (wanted.of(Kind.ITEM).any() and lists_beyond(bundle, 1))

    def flat(self, bundle: LoadedBundle, wanted: Wanted) -> tuple[Found, float, float]:
        """Answer by a single search, if `is_flat`; return the items, and the seconds of tower and search."""
        started = time.monotonic()
        faiss.omp_set_num_threads(self.retriever.threads)  # OpenMP keeps this per thread
        read = self._read(bundle, wanted)
        there, vectors = _vectors(bundle, wanted, read)
        planned = time.monotonic()
        similar = bool(wanted.of(Kind.ITEM).any())
        scores, rows = _searched(bundle, there, vectors, wanted.k + (read.own >= 0))
        scores, rows, counts = _kept(scores, rows, wanted.k, read.own if similar else None)
        ids: list[str] = bundle.ids[rows].tolist()
        complete, none = wanted.k <= bundle.items - (read.own >= 0), np.zeros(len(there), np.bool_)
        found = Found(ids, scores, counts, read.rows >= 0, ~there, none, complete, none[:0])
        return found, planned - started, time.monotonic() - planned

    def by_tasks(self, tasks: Sequence[Task]) -> tuple[Found, float, float]:
        """Answer tasks by the retriever; return the items, and the seconds of tower and search."""
        answers = self.retriever(tasks)
        return _found(answers, tasks), answers[0].tower_seconds, answers[0].search_seconds

    def _read(self, bundle: LoadedBundle, wanted: Wanted) -> _Read:
        """Look up the rows of all keys and of users' stored histories, and make the tower's inputs."""
        own = np.full(len(wanted.k), -1)
        if wanted.of(Kind.HISTORY).all():
            rows = self._rows(bundle, wanted.keys)
            return _Read(rows, own, *self._inputs(bundle, rows, wanted.lengths))
        kinds, users = np.repeat(wanted.kinds, wanted.lengths), wanted.of(Kind.USER)
        rows = np.zeros(len(kinds), np.int64)
        rows[kinds != Kind.USER] = self._rows(bundle, wanted.keys[kinds != Kind.USER])
        own[wanted.of(Kind.ITEM)] = rows[kinds == Kind.ITEM]
        inputs, mask = self._inputs(bundle, np.where(kinds == Kind.HISTORY, rows, -1), wanted.lengths)
        if users.any():
            keys = UserKeys(wanted.keys[kinds == Kind.USER])
            stored = self.retriever.histories.look_up(keys, np.empty(0, np.int64)).items
            lengths = np.full(len(stored), stored.shape[1])
            inputs[users], mask[users] = self._inputs(bundle, self._rows(bundle, stored.ravel()), lengths)
        return _Read(rows, own, inputs, mask)

    def _rows(self, bundle: LoadedBundle, keys: I64) -> I64:
        """Return the row of each key as `bundle.rows_of` does, by compiled code, which is faster for a few keys."""
        own = bundle.item_rows
        return self.compiled.look_up(keys, own.keys, own.rows, own.later.keys, own.later.values)

    def _inputs(self, bundle: LoadedBundle, rows: I64, lengths: I64) -> tuple[I64, Bools]:
        newest, length = bundle.manifest.newest, bundle.manifest.history_length
        inputs, mask = self.compiled.tower_inputs(rows, lengths, newest, FIRST_ITEM_ROW)
        if newest == length:
            return inputs, mask
        left = ((0, 0), (length - newest, 0))
        return np.pad(inputs, left), np.pad(mask, left)


def _vectors(bundle: LoadedBundle, wanted: Wanted, read: _Read) -> tuple[Bools, F32]:
    """Return a mask of the queries that have a vector, (n,), and these vectors, in order."""
    there: Bools = np.logical_or.reduce(read.mask, axis=1)
    if there.all():
        return there, bundle.normalised(bundle.tower(bundle.embeddings[read.inputs], read.mask))
    vectors = np.empty((len(there), bundle.manifest.dimension), np.float32)
    if there.any():
        vectors[there] = bundle.normalised(bundle.tower(bundle.embeddings[read.inputs[there]], read.mask[there]))
    if len(wanted.embeddings):
        vectors[wanted.of(Kind.EMBEDDING)] = bundle.normalised(wanted.embeddings)
    similar = read.own >= 0
    if similar.any():
        vectors[similar] = bundle.exact.vectors[read.own[similar]]
    there |= wanted.of(Kind.EMBEDDING) | similar
    return there, vectors[there]


def _searched(bundle: LoadedBundle, there: Bools, vectors: F32, needed: I64) -> tuple[F32, I64]:
    """Return scores and rows (n, width), best first; queries without a vector get popular items.

    `there` (n,) marks the queries with a vector, `vectors` are these vectors, and `needed` (n,) is the number of rows
    that each query needs.
    """
    width = min(int(needed.max()), bundle.items)
    if there.all():
        return nearest(bundle, vectors, width, needed)
    scores, rows = np.zeros((len(there), width), np.float32), np.full((len(there), width), -1, np.int64)
    if len(vectors):
        scores[there], rows[there] = nearest(bundle, vectors, width, needed[there])
    popular = bundle.popular.first(width)
    scores[~there, : len(popular)], rows[~there, : len(popular)] = bundle.popularity[popular], popular
    return scores, rows


def _kept(scores: F32, rows: I64, k: I64, own: I64 | None) -> tuple[F32, I64, I64]:
    """Return the scores and rows of all queries, concatenated, and the number of rows of each query.

    A query keeps at most `k` (n,) rows, without its row in `own` (n,).
    """
    width = rows.shape[1]
    if own is None and (k == width).all() and (rows[:, -1] >= 0).all():
        return scores.ravel(), rows.ravel(), k
    kept, places = rows >= 0, np.arange(width)
    if own is not None:
        kept &= rows != own[:, None]
        places = np.cumsum(kept, axis=1) - 1
    kept &= places < k[:, None]
    return scores[kept], rows[kept], kept.sum(axis=1)


def _found(answers: Sequence[Answer], tasks: Sequence[Task]) -> Found:
    """Convert the answers to tasks to columns."""
    hits = [hit for answer in answers for hit in answer.hits]
    sources = [query.source for task in tasks for query in task.queries]
    cold = [hit.cold or [False] * len(hit.ids) for hit in hits] if any(hit.cold for hit in hits) else []
    return Found(
        ids=[each for hit in hits for each in hit.ids],
        scores=np.array([score for hit in hits for score in hit.scores], np.float32),
        counts=np.array([len(hit.ids) for hit in hits]),
        known=np.concatenate([_known(source, hit) for source, hit in zip(sources, hits, strict=True)]),
        fallback=np.array([hit.fallback for hit in hits]),
        seen_bounded=np.array([hit.seen_bounded for hit in hits]),
        complete=np.array([hit.complete for hit in hits]),
        cold=np.array([each for flags in cold for each in flags], np.bool_),
    )


def _known(source: Source, hits: Hits) -> Bools:
    """Return a mask of a query's keys that the bundle has; the key of a user counts as known."""
    missing = set(hits.missing)
    match source:
        case ByHistory():
            return np.array([each not in missing for each in source.ids], np.bool_)
        case ByEmbedding():
            return np.empty(0, np.bool_)
        case _:
            return np.array([not missing])
