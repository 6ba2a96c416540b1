from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, log_of
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.users import sample_users

logs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40)


def spelt(log: Interactions) -> list[tuple[str, str, int]]:
    assert log.timestamps is not None
    rows = zip(log.user_ids[log.users], log.item_ids[log.items], log.timestamps.tolist(), strict=True)
    return [(str(user), str(item), time) for user, item, time in rows]


def log_from(rows: list[tuple[int, int]]) -> Interactions:
    """Return a log whose codes number what occurs in it."""
    numbers = [np.unique(column, return_inverse=True)[1].tolist() for column in zip(*rows, strict=True)]
    return log_of(*numbers)


@given(logs, st.integers(1, 45))
def test_chosen_users_keep_all_that_they_did(rows: list[tuple[int, int]], at_most: int) -> None:
    log = log_from(rows)
    some = sample_users(log, at_most)
    kept = {user for user, _, _ in spelt(some)}
    assert spelt(some) == [row for row in spelt(log) if row[0] in kept]
    assert len(some) <= at_most or len(kept) == 1
    # Codes number what is left, without gaps.
    assert sorted(set(some.users.tolist())) == list(range(len(some.user_ids)))
    assert sorted(set(some.items.tolist())) == list(range(len(some.item_ids)))
    # One more user would not fit.
    if len(some) < len(log) and len(some) <= at_most:
        others = [sum(row[0] == user for row in spelt(log)) for user in {row[0] for row in spelt(log)} - kept]
        assert len(some) + max(others) > at_most


def test_a_log_that_fits_stays_as_it_is() -> None:
    log = circles()
    assert sample_users(log, len(log)) is log


def test_the_same_users_are_chosen_each_time_and_not_the_first_ones() -> None:
    log = replace(circles(), split=np.array(["train"] * 300, object))
    some = sample_users(log, 100)
    assert spelt(some) == spelt(sample_users(log, 100))
    assert len(some) == 90
    assert set(some.user_ids.tolist()) != set(range(6))
    assert some.split is not None
    assert len(some.split) == 90
