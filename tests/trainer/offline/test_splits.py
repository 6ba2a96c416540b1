""""""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import log_of
from tests.trainer.ranking.ranked import lists
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.data import Interactions, InteractionsError, Ints, read_interactions
from weir.trainer.offline.splits import (
    Past,
    Split,
    each_interaction,
    each_user,
    labelled,
    leave_one_out,
    random_per_user,
    temporal,
    top_items_and_positives,
)

DATA = Path(os.environ.get("WEIR_DATA", "../shared/data"))
needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(not (DATA / "ml-1m").exists(), reason=f"{DATA}/ml-1m is absent; point WEIR_DATA at the data"),
]

users_of_rows = st.lists(st.integers(0, 6), min_size=3, max_size=60)


def interactions(users: list[int], *, timed: bool = True, split: list[str] | None = None) -> Interactions:
    ids, codes = np.unique(users, return_inverse=True)
    rows = np.arange(len(users))
    labels = None if split is None else np.array(split, object)
    return Interactions("log.jsonl", codes, rows, rows if timed else None, ids, rows, labels)


def parts(split: Split) -> tuple[Ints, Ints, Ints]:
    found = split.train, split.validation, split.test
    assert all((np.diff(part) > 0).all() for part in found)
    return found


@given(users_of_rows, st.floats(0, 0.4), st.floats(0, 0.4), st.integers(0, 3))
def test_every_row_is_in_one_part(users: list[int], validation: float, test: float, seed: int) -> None:
    rows = interactions(users)
    for split in (
        temporal(rows, validation, test),
        leave_one_out(rows),
        random_per_user(rows, test, validation, seed=seed),
    ):
        assert sorted(np.concatenate(parts(split)).tolist()) == list(range(len(users)))


@given(users_of_rows)
def test_leave_one_out_takes_the_last_two_of_users_with_three(users: list[int]) -> None:
    split = leave_one_out(interactions(users))
    last, before = [], []
    for user in set(users):
        rows = [row for row, other in enumerate(users) if other == user]
        if len(rows) >= 3:
            last.append(rows[-1])
            before.append(rows[-2])
    assert split.test.tolist() == sorted(last)
    assert split.validation.tolist() == sorted(before)


def test_a_temporal_split_cuts_at_shares_of_all_rows() -> None:
    train, validation, test = parts(temporal(interactions([0] * 17 + [1] * 4), 0.2, 0.1))
    assert (train[-1], validation[0], validation[-1], test[0]) == (14, 15, 18, 19)


@given(users_of_rows, st.integers(0, 9))
def test_a_random_split_takes_shares_of_each_user_and_leaves_one(users: list[int], seed: int) -> None:
    split = random_per_user(interactions(users), 0.4, 0.5, seed=seed)
    codes = np.unique(users, return_inverse=True)[1]
    counts, train, validation, test = (np.bincount(codes[part]) for part in (np.arange(len(users)), *parts(split)))
    for user, count in enumerate(counts):
        tests = min(round(count * 0.4), count - 1)
        assert np.pad(test, (0, 9))[user] == tests
        assert np.pad(validation, (0, 9))[user] == min(round((count - tests) / 2), count - tests - 1)
        assert train[user] >= 1


def test_a_random_split_is_drawn_by_its_seed_from_all_places() -> None:
    rows = interactions([0] * 10, timed=False)
    draws = [random_per_user(rows, seed=seed).test.tolist() for seed in range(400)]
    assert draws[3] == random_per_user(rows, seed=3).test.tolist()
    taken = np.bincount(np.concatenate(draws), minlength=10)
    # Each of ten rows is drawn with probability 1/5: 80 of 400, standard deviation 8.
    assert taken.min() > 80 - 5 * 8
    assert taken.max() < 80 + 5 * 8


def test_labels_are_followed() -> None:
    train, validation, test = parts(labelled(interactions([0] * 4, split=["val", "train", "test", "train"])))
    assert (train.tolist(), validation.tolist(), test.tolist()) == ([1, 3], [0], [2])


def test_errors_name_the_source_and_what_is_allowed() -> None:
    with pytest.raises(InteractionsError, match=r"log\.jsonl: has no timestamps, .*split leave-one-out or at random"):
        temporal(interactions([0, 1], timed=False))
    with pytest.raises(InteractionsError, match=r"shares 0\.5 and 0\.5; allowed are"):
        temporal(interactions([0, 1]), 0.5, 0.5)
    with pytest.raises(InteractionsError, match=r"log\.jsonl: shares -0\.1 and 0\.1"):
        random_per_user(interactions([0, 1]), -0.1)
    with pytest.raises(InteractionsError, match=r"log\.jsonl: has no column 'split'; add one with train, val, test"):
        labelled(interactions([0, 1]))
    with pytest.raises(InteractionsError, match="column 'split' has 'dev'; allowed are train, val, test"):
        labelled(interactions([0, 1], split=["train", "dev"]))
    with pytest.raises(InteractionsError, match="is never 'train'"):
        labelled(interactions([0], split=["test"]))


class TestRealData:
    pytestmark = needs_data

    def test_the_given_split_of_movielens_is_its_order_of_time_up_to_one_instant(self) -> None:
        read = read_interactions(str(DATA / "ml-1m/interactions.parquet"))
        by_time, given_one = temporal(read), labelled(read)
        for split in (by_time, given_one):
            assert [len(part) for part in parts(split)] == [800_167, 100_021, 100_021]
        # Two rows of the instant of the first cut have changed sides.
        moved = np.setxor1d(by_time.train, given_one.train)
        assert read.timestamps is not None
        assert len(moved) == 2
        assert len(set(read.timestamps[moved])) == 1
        np.testing.assert_array_equal(by_time.test, given_one.test)

    def test_leave_one_out_of_movielens_tests_every_user_once(self) -> None:
        split = leave_one_out(read_interactions(str(DATA / "ml-1m/leave-one-out-order.txt.gz")))
        assert [len(part) for part in parts(split)] == [999_611 - 2 * 6_040, 6_040, 6_040]

    def test_gowalla_is_split_eighty_to_twenty(self) -> None:
        split = random_per_user(read_interactions(str(DATA / "gowalla/interactions.parquet")), 0.2)
        assert len(split.test) / 1_027_464 == pytest.approx(0.2, abs=0.001)


def test_cases_of_both_protocols() -> None:
    rows = log_of([0, 1, 0, 0, 2], [3, 1, 2, 3, 0])
    single = each_interaction(rows, np.array([0, 3, 4]))
    assert (single.users.tolist(), lists(single)) == ([0, 0, 2], [[3], [3], [0]])
    users = each_user(rows, np.array([4, 0, 2, 3]))
    assert (users.users.tolist(), lists(users)) == ([0, 2], [[2, 3], [0]])


def test_the_index_has_the_most_popular_items_and_all_positives() -> None:
    assert top_items_and_positives(np.array([1, 5, 0, 5, 5]), 2, np.array([2, 2, 1])).tolist() == [1, 2, 3]


USERS = 5
logs = st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(0, 9)), min_size=1, max_size=40)
Log = list[tuple[int, int]]


def numbers(below: int) -> st.SearchStrategy[Ints]:
    """Numbers in any order, also repeated, also none."""
    return st.lists(st.integers(0, below - 1), max_size=12).map(lambda found: np.array(found, np.int64))


def agrees(past: Past, wanted: list[list[int]], data: st.DataObject) -> None:
    """Compare `take` and `histories` with lists of item codes, oldest first."""
    for cases in (np.arange(len(wanted)), data.draw(numbers(len(wanted))) if wanted else np.arange(0)):
        items, place = past.take(cases)
        assert items.tolist() == [item for case in cases for item in wanted[case]]
        assert place.tolist() == [at for at, case in enumerate(cases) for _ in wanted[case]]
    length = data.draw(st.integers(1, 7))
    assert past.histories(length).tolist() == [
        [PADDING] * (length - len(items)) + [FIRST_ITEM + item for item in items][-length:] for items in wanted
    ]


@given(logs, st.data())
def test_an_interaction_sees_what_its_user_did_before(log: Log, data: st.DataObject) -> None:
    asked = data.draw(numbers(len(log)))
    past = Past.of_interactions(log_of(*map(list, zip(*log, strict=True)), sizes=(USERS, 10)), asked)
    agrees(past, [[item for user, item in log[:row] if user == log[row][0]] for row in asked], data)


@given(logs, st.data())
def test_a_user_sees_what_she_did_in_the_known_part(log: Log, data: st.DataObject) -> None:
    known = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log)).filter(any)))
    users = data.draw(numbers(USERS))
    past = Past.of_users(log_of(*map(list, zip(*log, strict=True)), sizes=(USERS, 10)), known, users)
    agrees(past, [[log[row][1] for row in known if log[row][0] == user] for user in users], data)


@given(st.lists(st.integers(0, USERS - 1), min_size=1, max_size=40), st.data())
def test_nothing_of_an_interaction_itself_or_after_it_is_seen(users: list[int], data: st.DataObject) -> None:
    # Every interaction has an item of its own, so an item tells when it came.
    log, asked = log_of(users), data.draw(numbers(len(users)))
    past = Past.of_interactions(log, asked)
    items, place = past.take(np.arange(len(asked)))
    assert (items < asked[place]).all()
    assert (past.histories(6).numpy() - FIRST_ITEM < asked[:, None]).all()
