"""Answers a batch of plain requests: one tower run and one search, on columns from start to end.

What is found is what `serving.retriever` finds. Where items must not be returned, or some are cold, it does so itself.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np

from contracts import IndexRows, ItemKeys, UserKeys
from contracts.item_rows import flat_tower_rows
from serving.bundle import LoadedBundle
from serving.native.columns import F32, I64, Bools, Found, Wanted
from serving.queries import Answer, ByHistory, Hits, Source, Task
from serving.retriever import Retriever

__all__ = ["PlainRetriever"]


@dataclass(frozen=True)
class PlainRetriever:
    """Called by the batcher's thread."""

    retriever: Retriever

    def is_flat(self, bundle: LoadedBundle) -> bool:
        """Say whether all items of a bundle may be returned, and all of them are its own."""
        tagged = bundle.shelf.tagged
        has_cold = tagged is not None and tagged.cold is not None and len(tagged.cold) > 0
        return not has_cold and not self.retriever.sieve(bundle, tagged).blocked

    def flat(self, bundle: LoadedBundle, wanted: Wanted) -> tuple[Found, float, float]:
        """Return what is found, and the seconds of tower and search."""
        started = time.monotonic()
        faiss.omp_set_num_threads(self.retriever.threads)  # OpenMP keeps this per thread
        known, inputs, mask = self._inputs(bundle, wanted)
        there: Bools = np.logical_or.reduce(mask, axis=1)
        vectors = (
            bundle.normalised(bundle.tower(bundle.embeddings[inputs[there]], mask[there])) if there.any() else None
        )
        planned = time.monotonic()
        scores, rows = _nothing(len(there), min(int(wanted.k.max()), bundle.items))
        if vectors is not None:
            scores[there], rows[there] = bundle.index.search(vectors, scores.shape[1])
        for query in np.flatnonzero(~there).tolist():
            popular = bundle.popular.first(scores.shape[1])
            scores[query, : len(popular)], rows[query, : len(popular)] = bundle.popularity[popular], popular
        kept = (rows >= 0) & (np.arange(rows.shape[1]) < wanted.k[:, None])
        ids: list[str] = bundle.ids[rows[kept]].tolist()
        complete = wanted.k <= bundle.items
        none = np.zeros(len(there), np.bool_)
        found = Found(ids, scores[kept], kept.sum(axis=1), known, ~there, none, complete, none[:0])
        return found, planned - started, time.monotonic() - planned

    def by_tasks(self, tasks: Sequence[Task]) -> tuple[Found, float, float]:
        """Return the same of tasks in place of columns: whatever they leave out, and whatever may be returned."""
        answers = self.retriever(tasks)
        return _found(answers, tasks), answers[0].tower_seconds, answers[0].search_seconds

    def _inputs(self, bundle: LoadedBundle, wanted: Wanted) -> tuple[Bools, I64, Bools]:
        """Return which keys have an item, and what the tower reads: rows and mask, (n, length) each."""
        newest, of_users = bundle.manifest.history_length, wanted.of_users
        known = np.ones(len(wanted.keys), np.bool_)
        inputs = np.zeros((len(wanted.k), newest), np.int64)
        rows = bundle.rows_of(ItemKeys(wanted.keys[~of_users]))
        known[~of_users] = rows >= 0
        inputs[~wanted.users], _ = flat_tower_rows(rows, wanted.lengths[~wanted.users], newest)
        if wanted.users.any():
            stored = self.retriever.histories.look_up(UserKeys(wanted.keys[of_users]), np.empty(0, np.int64)).items
            lengths = np.full(len(stored), stored.shape[1])
            inputs[wanted.users], _ = flat_tower_rows(IndexRows(bundle.rows_of(stored).ravel()), lengths, newest)
        return known, inputs, inputs > 0


def _nothing(queries: int, width: int) -> tuple[F32, I64]:
    return np.zeros((queries, width), np.float32), np.full((queries, width), -1, np.int64)


def _found(answers: Sequence[Answer], tasks: Sequence[Task]) -> Found:
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
    """Return which of a query's keys have an item; the single key of a user counts as if it had."""
    missing = set(hits.missing)
    return np.array([each not in missing for each in source.ids] if isinstance(source, ByHistory) else [True], np.bool_)
