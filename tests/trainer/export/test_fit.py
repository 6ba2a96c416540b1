from typing import Any

import pytest

from weir.contracts import IndexFit
from weir.trainer.export.fit import is_outgrown, is_unfit, may_repair


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
