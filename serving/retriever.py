"""Answers a batch of tasks: one tower run and as few searches as their parameters allow.

Items that a query leaves out (seen, excluded, the query itself) are fetched on top of k and removed afterwards: with
few of them that costs less than a selector inside the index, and it works with every kind of index. What a filter does
not let pass, or what is not available, is never fetched (`weir.serving.filtered`).
"""

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
from weir.contracts.ascending import ascending
from weir.serving.bundle import LoadedBundle
from weir.serving.filtered import FilteredSearch
from weir.serving.index import Found
from weir.serving.known_users import Histories
from weir.serving.nearest import lists_beyond, nearest
from weir.serving.plan import Plan
from weir.serving.planning import Planner
from weir.serving.queries import Answer, Hits, Task
from weir.serving.rescoring import rescored
from weir.serving.rowsets import rowset
from weir.serving.sieve import NO_TAGS, Passing, Sieve
from weir.serving.spans import BatchTimes
from weir.serving.spread import Ranked, Spread
from weir.serving.tagged import TaggedRows

__all__ = ["FEW", "Retriever"]

Floats = npt.NDArray[np.float32]

FEW: Final = 256
"""Rows wanted of a search, up to which it makes no difference how many they are."""

_NO_KEYS: Final = ItemKeys(np.empty(0, np.int64))
_NOTHING: Final[Ranked] = (np.empty(0, np.float32), IndexRows(np.empty(0, np.int64)))


@dataclass(frozen=True)
class Retriever:
    """Called by the batcher's thread, with `threads` threads for FAISS.

    `taken_down` gives the keys of items that must not be returned, in a store with a secret: the same array until
    others are meant. So many candidates are `rescored`, where a bundle has a second phase; None: as many as it says.
    """

    histories: Histories
    threads: int = 1
    taken_down: Callable[[str], ItemKeys] = lambda _: _NO_KEYS
    rescored: int | None = None

    def candidates(self, bundle: LoadedBundle) -> int:
        """Return how many of the best items of its index are scored again; 0: none."""
        return bundle.rescored if self.rescored is None or not bundle.rescored else self.rescored

    def __call__(self, tasks: Sequence[Task]) -> list[Answer]:
        """Return one answer per task, in order."""
        faiss.omp_set_num_threads(self.threads)  # OpenMP keeps this per thread
        answers: dict[int, Answer] = {}
        bundles = [task.answering() for task in tasks]
        for numbers in _grouped(range(len(tasks)), lambda number: id(bundles[number])):
            group = [tasks[number] for number in numbers]
            bundle, tagged = bundles[numbers[0]], bundles[numbers[0]].shelf.tagged
            if tagged is not None and tagged.cold is not None and len(tagged.cold):
                bundle = tagged.cold.beside(bundle)
            planner = Planner(bundle, self.histories, self.sieve(bundle, tagged), self.candidates(bundle))
            answers.update(zip(numbers, _Batch(planner).answer(group), strict=True))
        return [answers[number] for number in range(len(tasks))]

    def sieve(self, bundle: LoadedBundle, tagged: TaggedRows | None) -> Sieve:
        """Return what may be returned of a bundle now."""
        shelf, down, now = bundle.shelf, self.taken_down(bundle.key_secret), time.time()
        if shelf.sieve is None or not shelf.sieve.holds(tagged, down, now):
            shelf.sieve = Sieve.of(bundle.rows, tagged, down, now)
        return shelf.sieve


@dataclass(frozen=True)
class _Batch:
    """Tasks of one bundle."""

    planner: Planner

    @property
    def bundle(self) -> LoadedBundle:
        return self.planner.bundle

    @cached_property
    def cold_from(self) -> int | None:
        """The first row of the cold items, if there are any."""
        return len(self.bundle.rows) - self.bundle.cold if self.bundle.cold else None

    def cold(self, rows: IndexRows) -> list[bool]:
        """Say which rows are those of cold items; nothing where none is."""
        if self.cold_from is None:
            return []
        found = rows >= self.cold_from
        return found.tolist() if found.any() else []

    def answer(self, tasks: list[Task]) -> list[Answer]:
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
        """Return the hits of each plan, in order."""
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
        """Yield the ids of the items found for each plan; they are looked up together."""
        ids: list[str] = self.bundle.ids[np.concatenate([rows for _, rows in found])].tolist()
        ends = np.cumsum([len(rows) for _, rows in found]).tolist()
        return (ids[start:end] for start, end in pairwise([0, *ends]))

    def complete(self, plan: Plan) -> bool:
        """Say whether there are k items that a plan may return."""
        passing, k = self.planner.passing(plan.task), plan.query.k
        there = self.bundle.items if passing is None else len(passing)
        if there - len(plan.excluded) >= k:
            return True
        left_out = len(ascending(plan.excluded)) if passing is None else passing.among(plan.excluded)
        return there - left_out >= k

    def search_key(self, plan: Plan) -> tuple[object, ...]:
        """Return what plans of one search share: the filter, and few rows do not go with many."""
        task = plan.task
        passing = self.planner.passing(task) if task.find else None
        lists = task.nprobe if passing is not None else self.lists(plan)
        within = self.bundle.index.reaches(plan.wanted, lists)
        few, again = (plan.wanted // FEW).bit_length(), plan.candidates > 0
        return plan.place < 0, task.find, task.exact, lists, id(passing), within, few, again

    def lists(self, plan: Plan) -> int:
        """Return how many inverted lists to visit, 0 for the bundle's own number."""
        return plan.task.nprobe or lists_beyond(self.bundle, len(plan.excluded))

    def search(self, plans: list[Plan], queries: Floats) -> list[Ranked]:
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
        # The second phase sees as many of them as of every other query, whatever was left out.
        kept = [plan.first(plan.kept(Found(*row))) for plan, *row in zip(plans, *found, strict=True)]
        return [
            # The second phase may find more above the threshold behind some that are below.
            plan.above(self.chosen(plan, ranked, partial(self.again, plan, query[None])))
            for plan, query, ranked in zip(plans, queries, rescored(self.bundle, plans, queries, kept), strict=True)
        ]

    def filtered(self, task: Task, passing: Passing) -> FilteredSearch:
        return FilteredSearch(None if task.exact else self.planner.listed, self.bundle.exact, passing, self.cold_from)

    def again(self, plan: Plan, query: Floats, left: BitMap, count: int) -> Ranked:
        """Search once more, among the rows that are left."""
        passing = Passing(left, len(self.bundle.rows))
        scores, rows = self.filtered(plan.task, passing).search(query, count, plan.task.nprobe)
        return rescored(self.bundle, [plan], query, [plan.kept(Found(scores[0], IndexRows(rows[0])))])[0]

    def chosen(self, plan: Plan, found: Ranked, rank: Callable[[BitMap, int], Ranked]) -> Ranked:
        """Return the k of the best rows that a cap on tags allows, the first ones without; `rank` finds more."""
        scores, rows = found
        cap, tagged, k = plan.task.cap, self.planner.sieve.tagged, plan.query.k
        if cap is None or tagged is None:
            return scores[:k], IndexRows(rows[:k])
        spread = Spread(tagged, self.bundle.rows, cap, k)
        spread.take(scores, rows)
        if not spread.done:
            passing = self.planner.passing(plan.task)
            left = self.planner.sieve.passing(NO_TAGS, None) if passing is None else passing
            spread.go_on(left.rows - rowset(plan.excluded) - rowset(rows), rank)
        return spread.taken

    def popular(self, plan: Plan) -> Ranked:
        passing = self.planner.passing(plan.task)
        wanted = min(plan.wanted, self.bundle.items)
        if passing is None:
            rows = self.bundle.popular.first(wanted)
        else:
            rows = passing.most_popular(self.bundle.popularity.__getitem__, wanted)
        return self.chosen(plan, plan.kept(self.by_popularity(rows)), self.next_popular)

    def next_popular(self, left: BitMap, count: int) -> Ranked:
        """Return the most popular of the rows that are left."""
        rows = Passing(left, len(self.bundle.rows)).most_popular(self.bundle.popularity.__getitem__, count)
        return self.by_popularity(rows)

    def by_popularity(self, rows: IndexRows) -> Found:
        return Found(self.bundle.popularity[rows].astype(np.float32), rows)


def _grouped(numbers: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number in numbers:
        groups[key(number)].append(number)
    return list(groups.values())
