from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.index.test_index import VECTORS, open_index
from tests.serving.index.test_index import built_index as built
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import TagFilter
from weir.serving.index.index import ExactIndex
from weir.serving.search.cost import exact_query_cost, parts_of, query_costs, task_cost
from weir.serving.search.queries import Answer, ByHistory, ByUser, Hits, Query, Task, joined

EXACT = ExactIndex(VECTORS)
LISTS = open_index(built("IVF8,Flat"), {"nprobe": 2}, "cpu")
BUNDLE = cast(LoadedBundle, SimpleNamespace(index=LISTS, exact=EXACT, rescored=0))


def history(length: int, k: int = 10) -> Query:
    return Query(ByHistory(("item",) * length, np.zeros(length, np.int64)), k)


def test_the_cost_is_what_the_protocol_says() -> None:
    queries = (history(30), Query(ByUser(7), 100))
    excluded = np.arange(5)
    assert query_costs(Task(BUNDLE, queries, excluded=excluded)) == [
        100 + 30 + 5 + 10 + 300 / 64 * 2 / 8,
        100 + 0 + 5 + 100 + 300 / 64 * 2 / 8,
    ]
    assert query_costs(Task(BUNDLE, queries, nprobe=4)) == [140 + 300 / 64 / 2, 200 + 300 / 64 / 2]
    assert query_costs(Task(BUNDLE, queries, nprobe=2**32 - 1)) == [140 + 300 / 64, 200 + 300 / 64]
    assert query_costs(Task(BUNDLE, queries, exact=True)) == [140 + 300 / 512, 200 + 300 / 512]
    assert query_costs(Task(BUNDLE, queries, exact=True))[0] == exact_query_cost(30, 10, 300)
    assert query_costs(Task(BUNDLE, queries, find=False)) == [130, 100]
    assert query_costs(Task(BUNDLE, queries, exact=True, exclude_seen=True)) == [140 + 300 / 512, 400 + 300 / 512]
    assert query_costs(Task(BUNDLE, queries, exclude_seen=True, find=False)) == [130, 100]
    filtered = Task(BUNDLE, queries, allowed=np.arange(64))
    assert query_costs(filtered) == [140 + 64 / 512, 200 + 64 / 512]
    assert task_cost(filtered) == 64 + sum(query_costs(filtered))


def test_tags_cost_what_they_may_and_a_cap_on_them_more() -> None:
    bundle = cast(LoadedBundle, SimpleNamespace(index=LISTS, exact=EXACT, items=1_000_000, rescored=0))
    [tags] = query_costs(Task(bundle, (history(0, 200),), tags=TagFilter(any=("a",), none=("b", "c"))))
    assert tags == 100 + 200 + 100 + 5 * 200 + 2 * (200 * 8) ** 0.5
    assert task_cost(Task(bundle, (history(0, 200),), tags=TagFilter(any=("a",), none=("b", "c")))) == tags + 3
    [compared] = query_costs(Task(bundle, (history(0),), tags=TagFilter(any=("a",)), exact=True))
    assert compared == 110 + 0.06 * 1_000_000
    [capped] = query_costs(Task(bundle, (history(0),), cap=TagCap(2), allowed=np.arange(64)))
    assert capped == 110 + 100 + 5 * 100 + 2 * (100 * 8) ** 0.5 + 1_000_000 / 32


@pytest.mark.parametrize(("factory", "cost"), [("Flat", 300 / 64), ("HNSW16", 300.0), ("IVF8,Flat", 300 / 64 / 8)])
def test_indexes_know_what_they_compare(factory: str, cost: float) -> None:
    assert open_index(built(factory), {}, "cpu").cost() == cost


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40), st.floats(50, 2000), st.booleans())
def test_parts_are_the_task_in_order_and_no_dearer_than_allowed(lengths: list[int], most: float, allow: bool) -> None:
    allowed = np.arange(20) if allow else None
    task = Task(BUNDLE, tuple(history(length) for length in lengths), allowed=allowed, nprobe=3)
    parts = parts_of(task, most)
    assert tuple(query for part in parts for query in part.task.queries) == task.queries
    assert all(part.size == len(part.task.queries) > 0 for part in parts)
    for part in parts:
        assert part.cost == pytest.approx(task_cost(part.task))
        assert part.cost <= most or part.size == 1
        assert (part.task.nprobe, part.task.allowed is allowed) == (3, True)


def test_the_answers_to_parts_are_one_answer() -> None:
    hits = [Hits([str(number)], [1.0], [], None) for number in range(3)]
    whole = joined([Answer("v1", hits[:2], 1.0, 2.0), Answer("v1", hits[2:], 0.5, 0.25)])
    assert (whole.hits, whole.tower_seconds, whole.search_seconds) == (hits, 1.5, 2.25)
