import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import log_of
from tests.trainer.ranking.ranked import lists
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.cases import Past, each_interaction, each_user, top_items_and_positives
from weir.trainer.offline.data import Ints


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
