from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import Key, hash_id
from weir.serving.monitor.variants.counted import CountedUsers

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1).map(Key), max_size=50)


@given(KEYS)
def test_who_is_counted_survives_a_restart(users: list[Key]) -> None:
    counted = CountedUsers("new")
    for user in users:
        counted.add(user)
    again = CountedUsers.decode("new", counted.encode())
    assert all(user in again for user in users)
    again.add(Key(7))
    assert Key(7) in again


def test_few_others_share_a_slot() -> None:
    """Of 10,000 counted users, fewer than 2 % of others are left out."""
    counted = CountedUsers("new")
    for number in range(10_000):
        counted.add(hash_id(f"user-{number}"))
    others = [hash_id(f"other-{number}") for number in range(10_000)]
    assert sum(other in counted for other in others) < 200
    assert sum(other in CountedUsers.decode("new", "") for other in others) == 0


def test_it_is_small_and_differs_by_challenger() -> None:
    counted = CountedUsers("new")
    users = [hash_id(f"user-{number}") for number in range(1000)]
    for user in users:
        counted.add(user)
    assert len(counted.encode()) < 10_000
    other = CountedUsers.decode("newer", counted.encode())
    assert sum(user in other for user in users) < 50
