"""The cost of a request: an estimate in microseconds of one core, from its size alone.

    cost of a request = item ids and tags of its filter + the sum over its queries
    cost of a query   = 100 + item ids of its history + values of its features + excluded item ids + k + search
                        (+ 200 to leave out a user's seen items: hundreds may be fetched in addition to k)
                        (+ 0.4 for each candidate that the second phase re-scores)

`search` is `weir.serving.index.index.Index.cost`: the vectors compared, 64 per microsecond in lists and graphs, 512 by
a matrix product (exact search, `allowed_item_ids`); for a filter by tags its maximum
(`weir.serving.index.probing.filtered_cost`). A cap on tags costs the same for more rows, and a pass over all items for
the further search that it may need. The estimate is simple enough to be reported, and right to a small factor: it
bounds what one request may ask for, and keeps expensive queries out of the batches of cheap ones.
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
"""Cost of every query: parsing, tower and answer."""

SEEN: Final = 200.0
"""Cost of leaving out a user's seen items, whose number is not known yet."""

RESCORED: Final = 0.4
"""Cost of re-scoring a candidate."""

_LOOKED_AT: Final = 32
"""Items per microsecond that are checked for eligibility and assigned to their list."""


def exact_query_cost(given: int, k: int, items: int) -> float:
    """Return the cost of a query with `given` ids and values that compares `items` items exactly."""
    return QUERY + given + k + items / COMPARED_BY_MATRIX


def query_costs(task: Task) -> Sequence[float]:
    """Return the cost of each query of a task: computed, unless the task carries it."""
    if task.costs is not None:
        return task.costs
    if not task.find:
        return [QUERY + _given(query) for query in task.queries]
    each = QUERY + len(task.excluded)
    each += RESCORED * task.bundle.rescored
    return [each + _search(task, query.k) + _given(query) + query.k + _seen(task, query) for query in task.queries]


def task_cost(task: Task) -> float:
    """Return the cost of a task."""
    return _shared(task) + sum(query_costs(task))


def parts_of(task: Task, most: float) -> list[Part[Task]]:
    """Split a task between queries into parts that cost at most `most` each, except single queries that cost more."""
    costs, shared = query_costs(task), _shared(task)
    if (whole := shared + sum(costs)) <= most:
        return [Part(task, len(task.queries), whole)]
    return [
        Part(
            replace(task, queries=task.queries[start:end], costs=costs[start:end]),
            end - start,
            shared + sum(costs[start:end]),
        )
        for start, end in _runs(costs, max(0.0, most - shared))
    ]


def _runs(costs: Sequence[float], most: float) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the longest runs whose sums are at most `most`; a run has at least one element."""
    start, total = 0, 0.0
    for place, cost in enumerate(costs):
        if place > start and total + cost > most:
            yield start, place
            start, total = place, 0.0
        total += cost
    yield start, len(costs)


def _given(query: Query) -> int:
    """Return the number of ids and values in a query."""
    ids = len(query.source.ids) if isinstance(query.source, ByHistory) else 0
    return ids + values_in(query.features)


def _seen(task: Task, query: Query) -> float:
    return SEEN if task.exclude_seen and isinstance(query.source, ByUser) else 0.0


def _shared(task: Task) -> float:
    return float(task.tags.tags) + (0.0 if task.allowed is None else float(len(task.allowed)))


def _search(task: Task, k: int) -> float:
    """Return the cost of one search."""
    if task.cap is not None:
        lists = 0 if task.exact else task.bundle.index.lists
        return filtered_cost(DEEPER * k, lists, task.bundle.items) + task.bundle.items / _LOOKED_AT
    if task.allowed is not None:
        return len(task.allowed) / COMPARED_BY_MATRIX
    if task.tags.tags:
        return filtered_cost(k, 0 if task.exact else task.bundle.index.lists, task.bundle.items)
    index = task.bundle.exact if task.exact else task.bundle.index
    return index.cost(task.nprobe)
