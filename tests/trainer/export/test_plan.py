""""""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from weir.contracts import IndexFit
from weir.trainer.export.index import Assigned, Clusters, empty_index
from weir.trainer.export.plan import (
    AssignedLists,
    calls_for_repair,
    is_outgrown,
    is_unfit,
    may_repair,
    placed_in,
    repaired_in,
)

D = 16
DRAW = np.random.default_rng(5)


def around(centres: np.ndarray, count: int, spread: float) -> np.ndarray:
    raw = centres[DRAW.integers(0, len(centres), count)] + spread * DRAW.normal(size=(count, D))
    return np.ascontiguousarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), np.float32)


def rounds(clusters: Clusters, items: np.ndarray, *further: np.ndarray) -> list[tuple[bool, float]]:
    """Add new items round by round; return whether each called for a repair, and how many fit badly after it."""
    found: list[tuple[bool, float]] = []
    known = clusters.assign(items)
    for new in further:
        items = np.concatenate([items, new])
        lists, cosines = np.full(len(new), -1), np.zeros(len(new), np.float32)
        known = Assigned(np.concatenate([known.lists, lists]), np.concatenate([known.cosines, cosines]))
        changed = known.lists < 0
        placed = placed_in(clusters, partial(clusters.assign, items), known)
        called = calls_for_repair(placed)
        clusters, known = repaired_in(placed, items, changed)
        assert clusters.fit.repairs == sum(one for one, _ in found) + called
        found.append((called, clusters.fit.unfit_left if called else clusters.fit.unfit))
    return found


def test_new_topics_call_for_repairs_and_what_no_repair_can_mend_only_once() -> None:
    old, first, second = (DRAW.normal(size=(count, D)) for count in (40, 20, 20))
    items = around(old, 20_000, 0.3)
    clusters, _ = Clusters.trained(empty_index(D, "IVF512,SQfp16"), "IVF512,SQfp16", items)
    nowhere = [around(DRAW.normal(size=(100_000, D)), 4000, 0.3) for _ in range(3)]
    news = [around(topics, 2000, 0.3) for topics in (first, first, second)]
    found = rounds(clusters, items, *news, *nowhere)
    assert [called for called, _ in found] == [True, False, True, True, False, False]
    fit_badly = [share for _, share in found]
    assert max(fit_badly[:3]) < 0.5
    # Vectors that lie nowhere in particular fit no list, before a repair and after it.
    assert min(fit_badly[3:]) > 0.8


def test_room_for_lists_ends_repairs() -> None:
    items = around(DRAW.normal(size=(40, D)), 20_000, 0.3)
    clusters, assigned = Clusters.trained(empty_index(D, "IVF512,SQfp16"), "IVF512,SQfp16", items)
    badly = clusters.fit.model_copy(update={"changed": 1000, "unfit": 1.0, "trained_lists": 512})
    assert calls_for_repair(AssignedLists(replace(clusters, fit=badly), assigned))
    full = badly.model_copy(update={"trained_lists": 512 * 2 // 3})
    assert not calls_for_repair(AssignedLists(replace(clusters, fit=full), assigned))


def fit(**changes: Any) -> IndexFit:
    return IndexFit(**{"trained_at": 1000.0, "trained_items": 100, "trained_lists": 10, "cosine": 0.5} | changes)


@pytest.mark.parametrize(
    ("changes", "unfit"),
    [
        ({}, False),
        ({"changed": 99, "unfit": 1.0}, False),
        ({"changed": 100, "unfit": 0.21}, True),
        ({"changed": 100, "unfit": 0.2}, False),
        ({"changed": 100, "unfit": 0.49, "unfit_left": 0.3}, False),
        ({"changed": 100, "unfit": 0.51, "unfit_left": 0.3}, True),
        ({"recall": 0.5}, False),
        ({"recall": 0.90, "recall_trained": 0.96}, True),
        ({"recall": 0.92, "recall_trained": 0.96}, False),
    ],
)
def test_new_items_and_new_queries_show_that_lists_no_longer_fit(changes: dict[str, Any], *, unfit: bool) -> None:
    assert is_unfit(fit(**changes)) is unfit


@pytest.mark.parametrize(
    ("changes", "items", "now", "outgrown"),
    [
        ({}, 199, 1001.0, False),
        ({}, 200, 1001.0, True),
        ({}, 100, 1000.0 + 7199, False),
        ({}, 100, 1000.0 + 7200, True),
        ({"repairs": 8}, 100, 1599.0, False),
        ({"repairs": 8}, 100, 1600.0, True),
        ({"repairs": 7}, 100, 1600.0, False),
        ({"changed": 100, "unfit": 0.5}, 100, 1600.0, True),
    ],
)
def test_growth_age_and_useless_repairs_call_for_a_training(
    changes: dict[str, Any], items: int, now: float, *, outgrown: bool
) -> None:
    assert is_outgrown(fit(**changes), items, now, 7200.0) is outgrown


def test_age_counts_only_where_there_is_a_schedule() -> None:
    assert not is_outgrown(fit(), 100, 1e9, None)


def test_repairs_end_with_the_room_for_lists() -> None:
    assert may_repair(fit(repairs=9), 14)
    assert not may_repair(fit(repairs=1), 15)
