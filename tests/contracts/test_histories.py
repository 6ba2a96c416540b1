from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts import Events, Histories

LENGTH = 3

# (user, item, time, positive); few users and times, so that ties and late events are common.
event = st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(0, 8), st.booleans())
batches = st.lists(st.lists(event, max_size=8), max_size=5)


def columns(batch: list[tuple[int, int, int, bool]]) -> Events:
    users, items, times, positive = (
        (np.array(column) for column in zip(*batch, strict=True)) if batch else [np.empty(0)] * 4
    )
    return Events(users.astype(np.int64), items.astype(np.int64), times.astype(np.int64), positive.astype(np.bool_))


class Oracle:
    """The definition, one event after the other, for events that come in order of time."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, list[int]] = defaultdict(list)

    def extend(self, batch: list[tuple[int, int, int, bool]]) -> list[list[int]]:
        histories = []
        for user, item, _, positive in batch:
            histories.append(self.padded(user))
            if positive:
                self.seen[user].append(item)
        return histories

    def padded(self, user: int) -> list[int]:
        return ([0] * LENGTH + self.seen[user])[-LENGTH:]


@given(batches)
def test_events_in_order_get_the_last_positives_before_them(batches: list[list[tuple[int, int, int, bool]]]) -> None:
    oracle, histories = Oracle(), Histories.empty(LENGTH)
    ordered = sorted((row for batch in batches for row in batch), key=lambda row: row[2])
    for start in range(0, len(ordered), 5):
        batch = ordered[start : start + 5]
        assert histories.extend(columns(batch)).tolist() == oracle.extend(batch)
    everyone = np.arange(5, dtype=np.int64)
    assert histories.lookup(everyone).tolist() == [oracle.padded(user) for user in range(5)]


@given(batches)
def test_no_event_sees_a_later_item_however_late_it_comes(batches: list[list[tuple[int, int, int, bool]]]) -> None:
    histories = Histories.empty(LENGTH)
    # Every item is used once and tells its own time.
    time_of = {}
    for number, batch in enumerate(batches):
        rows = [
            (user, 100 * number + place + 1, time, positive) for place, (user, _, time, positive) in enumerate(batch)
        ]
        time_of |= {item: (user, time) for user, item, time, _ in rows}
        for (user, _, time, _), seen in zip(rows, histories.extend(columns(rows)).tolist(), strict=True):
            known = [time_of[item] for item in seen if item]
            assert all(owner == user and then <= time for owner, then in known)
            assert known == sorted(known, key=lambda pair: pair[1])


@given(batches)
def test_splitting_a_batch_of_ordered_events_changes_nothing(batches: list[list[tuple[int, int, int, bool]]]) -> None:
    ordered = sorted((row for batch in batches for row in batch), key=lambda row: row[2])
    whole, parts = Histories.empty(LENGTH), Histories.empty(LENGTH)
    together = whole.extend(columns(ordered)).tolist()
    assert [
        row for start in range(0, len(ordered), 2) for row in parts.extend(columns(ordered[start : start + 2])).tolist()
    ] == together
    assert np.array_equal(whole.users, parts.users)
    assert np.array_equal(whole.items, parts.items)
    assert np.array_equal(whole.times[whole.items != 0], parts.times[parts.items != 0])


def test_the_unknown_have_only_padding() -> None:
    assert Histories.empty(LENGTH).lookup(np.array([7], np.int64)).tolist() == [[0, 0, 0]]
