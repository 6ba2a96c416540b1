import numpy as np
import pytest

from contracts import CorruptArtefactError, Store, WindowName, hash_id
from serving.histories import UserHistories
from tests.serving.support import Event, write_window

T = 1_700_000_000_000


def known(histories: UserHistories, user: str) -> tuple[list[int], list[int]]:
    found = histories.lookup(np.array([hash_id(user)], np.int64))
    return found.positives[0].tolist(), found.negatives[0].tolist()


def test_nobody_is_known_before_the_first_window(store: Store) -> None:
    histories = UserHistories(store)
    assert histories.catch_up() == 0
    assert known(histories, "ann") == ([0], [0])
    assert histories.users == 0


def test_windows_are_followed_in_commit_order(store: Store) -> None:
    histories = UserHistories(store)
    write_window(store, 0, [Event("ann", "a", T), Event("ann", "b", T + 1), Event("bob", "z", T)])
    assert histories.catch_up() == 1
    write_window(store, 1, [Event("ann", "c", T + 2)])
    write_window(store, 2, [Event("ann", "late", T - 5)])
    assert histories.catch_up() == 2
    assert histories.catch_up() == 0
    assert known(histories, "ann")[0] == [hash_id(item) for item in ("late", "a", "b", "c")]
    assert known(histories, "bob")[0] == [0, 0, 0, hash_id("z")]
    assert histories.users == 2
    assert histories.sequence == 2


def test_positives_and_negatives_are_kept_apart(store: Store) -> None:
    write_window(store, 0, [Event("ann", "a", T), Event("ann", "bad", T + 1, label=-1), Event("ann", "b", T + 2)])
    histories = UserHistories(store)
    histories.catch_up()
    assert known(histories, "ann") == ([0, 0, hash_id("a"), hash_id("b")], [0, 0, 0, hash_id("bad")])


def test_one_that_reads_all_at_once_knows_the_same(store: Store) -> None:
    random = np.random.default_rng(0)
    steady = UserHistories(store)
    users = [f"user-{i}" for i in range(10)]
    for sequence in range(5):
        events = [
            Event(users[u], f"item-{i}", T + 1000 * sequence + n, label=1 if sign else -1)
            for n, (u, i, sign) in enumerate(random.integers(0, (10, 50, 2), (30, 3)))
        ]
        write_window(store, sequence, events)
        steady.catch_up()
    restarted = UserHistories(store)
    restarted.catch_up()
    assert all(known(steady, user) == known(restarted, user) for user in users)


def test_a_reader_never_sees_half_a_window(store: Store) -> None:
    write_window(store, 0, [Event("ann", "a", T)])
    histories = UserHistories(store)
    histories.catch_up()
    state = histories._state
    assert state is not None
    before = state.positives.items.copy()
    write_window(store, 1, [Event("ann", "b", T + 1), Event("bob", "b", T + 1)])
    histories.catch_up()
    np.testing.assert_array_equal(state.positives.items, before)
    assert histories._state is not state


def test_a_damaged_window_stops_the_follower_before_it(store: Store) -> None:
    write_window(store, 0, [Event("ann", "a", T)])
    damaged = write_window(store, 1, [Event("ann", "b", T + 1)])
    name = f"{damaged.folder}/{WindowName.examples(0)}"
    whole = store.read(name)
    store.write(name, b"x")
    histories = UserHistories(store)
    with pytest.raises(CorruptArtefactError):
        histories.catch_up()
    assert histories.sequence == 0
    assert known(histories, "ann")[0] == [0, 0, 0, hash_id("a")]
    store.write(name, whole)
    assert histories.catch_up() == 1
