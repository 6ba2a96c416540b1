from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.known_users import KnownUsers
from weir.contracts import UserKeys
from weir.pipelines.transforms.histories import TouchedUsers

LENGTH = 3

# (user, item, time, positive); few users and times, so that ties and late events are common.
event = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 12), st.booleans())
windows = st.lists(st.lists(event, max_size=8), max_size=6)


def table(window: list[Any]) -> pa.Table:
    names = ["user_key", "item_key", "timestamp"]
    columns = {name: pa.array([row[place] for row in window], pa.int64()) for place, name in enumerate(names)}
    return pa.table(columns | {"label": pa.array([1 if row[3] else -1 for row in window], pa.int8())})


def truth(everything: list[Any], user: int, time: int) -> list[int]:
    """The last positives of a user that are older, or as old and came before, out of all that ever came."""
    mine = [row for row in everything if row[0] == user and row[3]]
    return [row[1] for row in sorted(mine, key=lambda row: row[2]) if row[2] <= time][-LENGTH:]


@settings(max_examples=300)
@given(windows, st.integers(1, 3), st.integers(0, 3))
def test_a_history_is_the_true_one_or_unknown(found: list[list[Any]], together: int, more: int) -> None:
    """Against a plain list of all events; `together` windows make a run, whose users are looked up once.

    Of a user `more` items are kept than a history has.
    """
    most = LENGTH + more
    shard, everything = KnownUsers(most), list[Any]()
    found = [sorted(window, key=lambda row: row[2]) for window in found]
    for start in range(0, len(found), together):
        run = found[start : start + together]
        users = np.array([row[0] for window in run for row in window], np.int64)
        touched = TouchedUsers.of(shard, UserKeys(users), LENGTH)
        for window in run:
            before = list(everything)
            attached = touched.extend(table(window))
            for row, history, unknown in zip(window, attached.history.tolist(), attached.unknown, strict=True):
                positives = sorted((one for one in before if one[0] == row[0] and one[3]), key=lambda one: one[2])
                kept, cut = positives[-most:], len(positives) > most
                now = [one for one in everything[len(before) :] if one[0] == row[0] and one[3]]
                older = [one for one in kept if one[2] <= row[2]]
                older += [one for one in now if not cut or one[2] >= kept[0][2]]
                assert unknown == (cut and len(older) < LENGTH)
                expected = [] if unknown else truth(everything, row[0], row[2])
                assert history == [0] * (LENGTH - len(expected)) + expected
                everything.append(row)
        if len(users):
            shard.take_in(touched.delta(1000))
    for user in {row[0] for row in everything}:
        total, items, times = shard.rows[user]
        mine = sorted((row for row in everything if row[0] == user and row[3]), key=lambda row: row[2])
        assert total == len(mine)
        assert [item for item in items.tolist() if item] == [row[1] for row in mine][-most:]
        assert times.tolist()[most - len(mine[-most:]) :] == [row[2] for row in mine][-most:]
        assert shard.items[user] == list(dict.fromkeys(row[1] for row in everything if row[0] == user))


def test_new_seen_items_are_bounded() -> None:
    shard = KnownUsers(LENGTH)
    touched = TouchedUsers.of(shard, UserKeys(np.array([7, 8])), LENGTH)
    touched.extend(table([(7, item, item, item % 2) for item in (1, 2, 3, 2, 4)] + [(8, 1, 9, True)]))
    seen = touched.delta(3).seen
    assert (seen.of(0).tolist(), seen.of(1).tolist(), seen.bounded.tolist()) == ([2, 3, 4], [1], [True, False])
