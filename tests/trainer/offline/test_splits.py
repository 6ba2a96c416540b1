import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.offline.data import Interactions, InteractionsError, Ints, read_interactions
from weir.trainer.offline.splits import Split, labelled, leave_one_out, random_per_user, temporal

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
