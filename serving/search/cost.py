"""The cost of a request: an estimate, in microseconds of one core, from its size, before any work is done for it.

    cost of a request = item ids and tags of its filter + the sum over its queries
    cost of a query   = 100 + item ids of its history + values of its features + excluded item ids + k + search
                        (+ 200 for a user whose seen items are to be left out: hundreds may be fetched in addition to k)
                        (+ 0.4 for each candidate that the bundle's second phase scores again)

`search` is what the index says (`weir.serving.index.index.Index.cost`): the vectors compared, 64 to a microsecond where
lists or graphs are walked, 512 where a matrix is multiplied (exact search, `allowed_item_ids`), and for a filter by
tags the most that it may be (`weir.serving.index.probing.filtered_cost`). With a cap on tags it is that for more rows,
and a look at every item for the search that may have to follow. The estimate is meant to be simple enough to be
reported, and right to a small factor: it bounds what one request may ask for, and keeps expensive queries out of the
batches of cheap ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from weir.serving.batching.lanes import Part
from weir.serving.index.diversity import DEEPER
from weir.serving.index.index import COMPARED_BY_MATRIX
from weir.serving.index.probing import filtered_cost
from weir.serving.search.queries import ByHistory, ByUser, Query, Task, values_in

__all__ = ["exact_query_cost", "parts_of", "query_costs", "task_cost"]

QUERY: Final = 100.0
"""What every query costs: parsing, the tower, its answer."""

SEEN: Final = 200.0
"""What it costs to leave out the stored seen items of a user, of whom it is not known yet how many there are."""

RESCORED: Final = 0.4
"""What it costs to score a candidate again."""

_LOOKED_AT: Final = 32
"""Items in a microsecond, of which it is found out whether they are left and in which list."""


def exact_query_cost(given: int, k: int, items: int) -> float:
    """Return what a query costs that gives so many ids and values, and compares so many items exactly."""
    return QUERY + given + k + items / COMPARED_BY_MATRIX


def query_costs(task: Task) -> list[float]:
    """Return what each query of a task costs."""
    if not task.find:
        return [QUERY + _given(query) for query in task.queries]
    each = QUERY + len(task.excluded)
    each += RESCORED * task.bundle.rescored
    return [each + _search(task, query.k) + _given(query) + query.k + _seen(task, query) for query in task.queries]


def task_cost(task: Task) -> float:
    """Return what a task costs."""
    return _shared(task) + sum(query_costs(task))


def parts_of(task: Task, most: float) -> list[Part[Task]]:
    """Cut a task between queries into parts that cost at most `most` each, where a single query does not cost more."""
    costs = query_costs(task)
    if _shared(task) + sum(costs) <= most:
        return [Part(task, len(task.queries), _shared(task) + sum(costs))]
    return [
        Part(replace(task, queries=task.queries[start:end]), end - start, _shared(task) + sum(costs[start:end]))
        for start, end in _runs(costs, max(0.0, most - _shared(task)))
    ]


def _runs(costs: Sequence[float], most: float) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the longest runs whose sums are at most `most`; a run has one element at least."""
    start, total = 0, 0.0
    for place, cost in enumerate(costs):
        if place > start and total + cost > most:
            yield start, place
            start, total = place, 0.0
        total += cost
    yield start, len(costs)


def _given(query: Query) -> int:
    """Return how many ids and values a query gives."""
    ids = len(query.source.ids) if isinstance(query.source, ByHistory) else 0
    return ids + values_in(query.features)


def _seen(task: Task, query: Query) -> float:
    return SEEN if task.exclude_seen and isinstance(query.source, ByUser) else 0.0


def _shared(task: Task) -> float:
    return float(task.tags.tags) + (0.0 if task.allowed is None else float(len(task.allowed)))


def _search(task: Task, k: int) -> float:
    """Return what one search costs."""
    if task.cap is not None:
        lists = 0 if task.exact else task.bundle.index.lists
        return filtered_cost(DEEPER * k, lists, task.bundle.items) + task.bundle.items / _LOOKED_AT
    if task.allowed is not None:
        return len(task.allowed) / COMPARED_BY_MATRIX
    if task.tags.tags:
        return filtered_cost(k, 0 if task.exact else task.bundle.index.lists, task.bundle.items)
    index = task.bundle.exact if task.exact else task.bundle.index
    return index.cost(task.nprobe)
