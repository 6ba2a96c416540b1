"""Files of users, worked out event by event from all windows of a store: the oracle of what the server reads."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weir.contracts import HistoryFile, Records, SeenItems, Store, UserRows, WindowLog, hash_id, write_user_file
from weir.contracts.base import columns

HISTORY_LENGTH = 4
"""Of windows and towers alike."""

SHARDS = 2
BOUND = 6
"""Most seen items of a user."""


@dataclass
class Event:
    """An example of a window; history in ids, oldest first. `said` are user features: a number, or texts, by name."""

    user: str
    item: str
    time_ms: int
    history: Sequence[str] = ()
    label: int = 1
    token: str | None = None
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class User:
    """All that is known of a user: positives as (time, item), and the seen items by arrival."""

    positives: list[tuple[int, int]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def add(self, item: int, time_ms: int, label: int) -> None:
        """Take in an event."""
        if item not in self.seen:
            self.seen.append(item)
        if label > 0:
            self.positives.append((time_ms, item))
            self.positives.sort(key=lambda one: one[0])

    @property
    def newest(self) -> list[tuple[int, int]]:
        """The last positives, with padding before them."""
        return ([(0, 0)] * HISTORY_LENGTH + self.positives)[-HISTORY_LENGTH:]


def users_of(store: Store) -> dict[int, User]:
    """Return all users by key, from the windows."""
    users: dict[int, User] = defaultdict(User)
    log = WindowLog(store)
    for manifest in log.committed():
        table = log.all_examples(manifest, [columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP, columns.LABEL])
        for user, *event in zip(*(column.to_pylist() for column in table.columns), strict=True):
            users[user].add(*event)
    return users


def write_users(store: Store, sequence: int, events: Sequence[Event]) -> tuple[HistoryFile, ...]:
    """Write what the events of the next window add to the histories: a file for each shard that they touch."""
    users = users_of(store)
    before = {key: len(user.seen) for key, user in users.items()}
    for event in events:
        users[hash_id(event.user)].add(hash_id(event.item), event.time_ms, event.label)
    touched = {key: users[key].seen[before.get(key, 0) :] for key in {hash_id(event.user) for event in events}}
    return tuple(
        write_file(
            store,
            shard,
            f"{sequence:04d}",
            {key: (users[key], new) for key, new in touched.items() if key % SHARDS == shard},
        )
        for shard in sorted({key % SHARDS for key in touched})
    )


def write_file(store: Store, shard: int, run: str, users: dict[int, tuple[User, list[int]]]) -> HistoryFile:
    """Write a file with the given users of a shard, and of each the given seen items."""
    keys = sorted(users)
    newest = np.array([users[key][0].newest for key in keys], np.int64)
    seen = [users[key][1][-BOUND:] for key in keys]
    offsets = np.cumsum([0, *map(len, seen)])
    bounded = np.array([len(users[key][1]) > BOUND for key in keys])
    totals = np.array([len(users[key][0].positives) for key in keys])
    rows = UserRows(
        np.array(keys),
        Records(totals, newest[:, :, 1], newest[:, :, 0]),
        SeenItems(np.array([item for items in seen for item in items], np.int64), offsets, bounded),
    )
    name = HistoryFile.path(shard, run, "0")
    entry = write_user_file(
        store, name, [rows], users=len(keys), seen=int(offsets[-1]), length=HISTORY_LENGTH, bound=BOUND
    )
    return HistoryFile(**entry.model_dump() | {"name": name}, shard=shard, length=HISTORY_LENGTH)
