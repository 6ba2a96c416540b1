"""Answers a batch of tasks, with one tower run and as few searches as the tasks' parameters allow.

Excluded items (seen, excluded by the request, the query's own item) are fetched on top of k and removed afterwards:
for few excluded items this costs less than a selector inside the index, and it works with every kind of index. Items
that a filter rejects or that are not available are not fetched at all (`weir.serving.index.probing`).
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from weir.contracts import IndexRows, ItemKeys
from weir.contracts.base.arrays import ascending
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.histories.files import Histories
from weir.serving.index.diversity import CappedSelection, Ranked
from weir.serving.index.eligibility import NO_TAGS, CatalogueView, Eligibility, RowMask
from weir.serving.index.index import Found
from weir.serving.index.popular import rowset
from weir.serving.index.probing import FilteredSearch
from weir.serving.metrics import BatchTimes
from weir.serving.search.planning import Plan, Planner
from weir.serving.search.queries import Answer, Hits, Task

__all__ = ["FEW", "Retriever", "lists_beyond", "nearest", "rescored"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_DEPTH: Final = 16
"""Items that the probed lists must hold for each excluded item (docs/serving.md, Path of a request)."""

FEW: Final = 256
"""Number of fetched rows up to which a search costs the same."""

_NO_KEYS: Final = ItemKeys(np.empty(0, np.int64))
_NOTHING: Final[Ranked] = (np.empty(0, np.float32), IndexRows(np.empty(0, np.int64)))


def nearest(bundle: LoadedBundle, queries: Floats, k: int, needed: Int64, nprobe: int = 0) -> Found:
    """Return the best `k` rows for each of `queries` (n, dimension), or all items if there are fewer.

    A query whose lists hold fewer rows than it needs, `needed` (n,), is repeated with twice as many lists. Exact search
    is used if that would be all lists or too many for the device, or if a graph walk does not reach enough rows. So a
    query's result does not depend on the other queries of the batch.
    """
    index = bundle.index
    found = index.search(queries, k, nprobe)
    if (found.rows[:, -1:] >= 0).all():
        return found
    lists, width = nprobe or _own_lists(bundle), found.rows.shape[1]
    while len(short := np.flatnonzero((found.rows >= 0).sum(axis=1) < np.minimum(needed, width))):
        lists *= 2
        if lists >= index.lists or not index.reaches(width, lists):
            found.scores[short], found.rows[short] = bundle.exact.search(queries[short], width)
            break
        found.scores[short], found.rows[short] = index.search(queries[short], width, lists)
    return found


def lists_beyond(bundle: LoadedBundle, excluded: int) -> int:
    """Return the number of inverted lists to probe for a query with `excluded` items; 0 for the bundle's default.

    Excluded items may fill the nearest lists. So the default is doubled until the lists hold 16 items for each excluded
    item, or all lists are probed.
    """
    lists, own = bundle.index.lists, _own_lists(bundle)
    needed = _DEPTH * excluded * lists / max(1, bundle.items)
    return min(own << math.ceil(math.log2(needed / own)), lists) if needed > own else 0


def _own_lists(bundle: LoadedBundle) -> int:
    """Return the default number of inverted lists to probe."""
    return int(bundle.manifest.index.parameters.get("nprobe", 1))


def rescored(bundle: LoadedBundle, plans: Sequence[Plan], queries: Floats, found: list[Ranked]) -> list[Ranked]:
    """Return the items `found` for each of n plans, re-scored and sorted; `queries` (n, dimension) are their vectors.

    Either all plans are re-scored or none is. Without re-scoring, only items below their task's score threshold are
    removed. Items with equal scores keep their order.
    """
    if bundle.scorer is None or not plans[0].candidates:
        return [plan.above(ranked) for plan, ranked in zip(plans, found, strict=True)]
    asked = np.full((len(found), max(len(rows) for _, rows in found)), -1)
    for place, (_, rows) in enumerate(found):
        asked[place, : len(rows)] = rows
    scores = bundle.scorer(queries, bundle.exact, IndexRows(asked))
    return [_in_order(line[: len(rows)], rows) for line, (_, rows) in zip(scores, found, strict=True)]


def _in_order(scores: Floats, rows: IndexRows) -> Ranked:
    order = np.argsort(-scores, kind="stable")
    return scores[order], IndexRows(rows[order])


@dataclass(frozen=True)
class Retriever:
    """Answers batches of tasks in the search thread; FAISS uses `threads` threads.

    `taken_down` returns the keys of items that must not be returned, by the store's key secret: the same array object
    until the takedown list changes. `rescored` replaces the number of re-scored candidates of bundles with a second
    phase; None: the number in the bundle.
    """

    histories: Histories
    threads: int = 1
    taken_down: Callable[[str], ItemKeys] = lambda _: _NO_KEYS
    rescored: int | None = None

    def candidates(self, bundle: LoadedBundle) -> int:
        """Return the number of candidates per query that are re-scored for a bundle; 0: no re-scoring."""
        return bundle.rescored if self.rescored is None or not bundle.rescored else self.rescored

    def __call__(self, tasks: Sequence[Task]) -> list[Answer]:
        """Return the answer to each task, in order."""
        faiss.omp_set_num_threads(self.threads)  # OpenMP keeps this per thread
        answers: dict[int, Answer] = {}
        bundles = [task.answering() for task in tasks]
        for numbers in _grouped(range(len(tasks)), lambda number: id(bundles[number])):
            group = [tasks[number] for number in numbers]
            bundle, tagged = bundles[numbers[0]], bundles[numbers[0]].state.view
            if tagged is not None and tagged.cold is not None and len(tagged.cold):
                bundle = bundle.with_cold(tagged.cold)
            planner = Planner(bundle, self.histories, self.eligibility(bundle, tagged), self.candidates(bundle))
            answers.update(zip(numbers, _Batch(planner).answer(group), strict=True))
        return [answers[number] for number in range(len(tasks))]

    def eligibility(self, bundle: LoadedBundle, tagged: CatalogueView | None) -> Eligibility:
        """Return which rows of a bundle may be returned now; cached until the catalogue or the takedown list changes.

        `tagged` is the catalogue's view of the bundle, None without a catalogue.
        """
        state, down, now = bundle.state, self.taken_down(bundle.key_secret), time.time()
        if state.eligibility is None or not state.eligibility.holds(tagged, down, now):
            state.eligibility = Eligibility.of(bundle.rows, tagged, down, now)
        return state.eligibility


@dataclass(frozen=True)
class _Batch:
    """Answers those tasks of a batch that use the same bundle."""

    planner: Planner

    @property
    def bundle(self) -> LoadedBundle:
        return self.planner.bundle

    @cached_property
    def cold_from(self) -> int | None:
        """The first row of the cold items; None without any."""
        return len(self.bundle.rows) - self.bundle.cold if self.bundle.cold else None

    def cold(self, rows: IndexRows) -> list[bool]:
        """Return whether each row is a cold item; empty if no row is."""
        if self.cold_from is None:
            return []
        is_cold = rows >= self.cold_from
        return is_cold.tolist() if is_cold.any() else []

    def answer(self, tasks: list[Task]) -> list[Answer]:
        """Return the answer to each task, in order."""
        start = time.monotonic()
        pairs = [(task, query) for task in tasks for query in task.queries]
        plans, vectors = self.planner.plan(pairs)
        planned = time.monotonic()
        hits = self.find(plans, vectors)
        found = time.monotonic()
        if traces := [task.trace for task in tasks if task.trace is not None]:
            traces[0].answered_with(traces, BatchTimes(self.bundle.version, len(pairs), start, planned, found))
        rest, version, tower, search = iter(hits), self.bundle.version, planned - start, found - planned
        return [Answer(version, [next(rest) for _ in task.queries], tower, search) for task in tasks]

    def find(self, plans: list[Plan], vectors: Floats) -> list[Hits]:
        """Return the hits of each plan, in order; `vectors` are the query vectors, one at each `Plan.place`."""
        hits: dict[int, Hits] = {}
        for numbers in _grouped(range(len(plans)), lambda number: self.search_key(plans[number])):
            chosen = [plans[number] for number in numbers]
            if not chosen[0].task.find:
                found = [_NOTHING] * len(chosen)
            elif chosen[0].place < 0:
                found = [self.popular(plan) for plan in chosen]
            else:
                found = self.search(chosen, vectors[[plan.place for plan in chosen]])
            for number, plan, (scores, rows), ids in zip(numbers, chosen, found, self.ids(found), strict=True):
                vector = vectors[plan.place] if plan.place >= 0 else None
                complete = not plan.task.find or self.complete(plan)
                hits[number] = Hits(
                    ids,
                    scores.tolist(),
                    plan.missing,
                    vector,
                    plan.seen_bounded,
                    complete,
                    self.cold(rows),
                    plan.missing_features,
                )
        return [hits[number] for number in range(len(plans))]

    def ids(self, found: Sequence[Ranked]) -> Iterator[list[str]]:
        """Yield the ids of the items found for each plan; all are looked up at once."""
        ids: list[str] = self.bundle.ids[np.concatenate([rows for _, rows in found])].tolist()
        ends = np.cumsum([len(rows) for _, rows in found]).tolist()
        return (ids[start:end] for start, end in pairwise([0, *ends]))

    def complete(self, plan: Plan) -> bool:
        """Return whether at least k items are eligible for a plan."""
        passing, k = self.planner.passing(plan.task), plan.query.k
        there = self.bundle.items if passing is None else len(passing)
        if there - len(plan.excluded) >= k:
            return True
        left_out = len(ascending(plan.excluded)) if passing is None else passing.among(plan.excluded)
        return there - left_out >= k

    def search_key(self, plan: Plan) -> tuple[object, ...]:
        """Return a key that is equal for plans that may share a search: same parameters, similar number of rows."""
        task = plan.task
        passing = self.planner.passing(task) if task.find else None
        lists = task.nprobe if passing is not None else self.lists(plan)
        within = self.bundle.index.reaches(plan.wanted, lists)
        few, again = (plan.wanted // FEW).bit_length(), plan.candidates > 0
        return plan.place < 0, task.find, task.exact, lists, id(passing), within, few, again

    def lists(self, plan: Plan) -> int:
        """Return the number of inverted lists to probe, 0 for the bundle's default."""
        return plan.task.nprobe or lists_beyond(self.bundle, len(plan.excluded))

    def search(self, plans: list[Plan], queries: Floats) -> list[Ranked]:
        """Return the scores and rows of each plan, by one search; `queries` (n, dimension) are the plans' vectors."""
        task, index, passing = plans[0].task, self.bundle.index, self.planner.passing(plans[0].task)
        lists = self.lists(plans[0])
        wanted = min(max(plan.wanted for plan in plans), self.bundle.items)
        if passing is not None:
            wanted, excluded = max(plan.before_cap for plan in plans), [plan.excluded for plan in plans]
            found = self.filtered(task, passing).search(queries, wanted, task.nprobe, excluded)
        elif task.exact or not index.reaches(wanted, lists) or (lists != task.nprobe and lists == index.lists):
            found = self.bundle.exact.search(queries, wanted)
        else:
            found = nearest(self.bundle, queries, wanted, np.array([plan.wanted for plan in plans]), lists)
        # The second phase gets the same number of candidates for every query, however many were excluded.
        kept = [plan.first(plan.kept(Found(*row))) for plan, *row in zip(plans, *found, strict=True)]
        return [
            # Applied again: a deeper search may add re-scored items above the threshold after some below it.
            plan.above(self.chosen(plan, ranked, partial(self.again, plan, query[None])))
            for plan, query, ranked in zip(plans, queries, rescored(self.bundle, plans, queries, kept), strict=True)
        ]

    def filtered(self, task: Task, passing: RowMask) -> FilteredSearch:
        """Return a search that is restricted to the `passing` rows, exact if the task asks for it."""
        return FilteredSearch(None if task.exact else self.planner.listed, self.bundle.exact, passing, self.cold_from)

    def again(self, plan: Plan, query: Floats, left: BitMap, count: int) -> Ranked:
        """Return the best `count` of the rows `left` for a plan, by another search with its vector `query` (1, d)."""
        passing = RowMask(left, len(self.bundle.rows))
        scores, rows = self.filtered(plan.task, passing).search(query, count, plan.task.nprobe)
        return rescored(self.bundle, [plan], query, [plan.kept(Found(scores[0], IndexRows(rows[0])))])[0]

    def chosen(self, plan: Plan, found: Ranked, rank: Callable[[BitMap, int], Ranked]) -> Ranked:
        """Return the first k rows found for a plan or, with a tag cap, the best k that the cap allows.

        If the cap leaves fewer than k, `rank` returns the best `count` of a set of further rows.
        """
        scores, rows = found
        cap, tagged, k = plan.task.cap, self.planner.eligibility.tagged, plan.query.k
        if cap is None or tagged is None:
            return scores[:k], IndexRows(rows[:k])
        spread = CappedSelection(tagged, self.bundle.rows, cap, k)
        spread.take(scores, rows)
        if not spread.done:
            passing = self.planner.passing(plan.task)
            left = self.planner.eligibility.passing(NO_TAGS, None) if passing is None else passing
            spread.go_on(left.rows - rowset(plan.excluded) - rowset(rows), rank)
        return spread.taken

    def popular(self, plan: Plan) -> Ranked:
        """Return the most popular rows for a plan without a vector; the scores are popularities."""
        passing = self.planner.passing(plan.task)
        wanted = min(plan.wanted, self.bundle.items)
        if passing is None:
            rows = self.bundle.popular.first(wanted)
        else:
            rows = passing.most_popular(self.bundle.popularity.__getitem__, wanted)
        return self.chosen(plan, plan.kept(self.by_popularity(rows)), self.next_popular)

    def next_popular(self, left: BitMap, count: int) -> Ranked:
        """Return the `count` most popular of the rows `left`, with their popularities."""
        rows = RowMask(left, len(self.bundle.rows)).most_popular(self.bundle.popularity.__getitem__, count)
        return self.by_popularity(rows)

    def by_popularity(self, rows: IndexRows) -> Found:
        return Found(self.bundle.popularity[rows].astype(np.float32), rows)


def _grouped(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        groups[key(number)].append(number)
    return list(groups.values())
