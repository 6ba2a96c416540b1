"""Histories in memory, in place of files: what one batch leaves is what the next one finds."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir.contracts import FoundUsers, Records, SeenItems, UserKeys, UserRows, UserTable
from weir.contracts.histories.user_rows import unknown_users


class KnownUsers(UserTable):
    """A shard without files whose users are in memory."""

    def __init__(self, length: int) -> None:
        super().__init__((), length)
        self.rows = dict[int, Any]()
        self.items = defaultdict[int, list[int]](list)

    def __hash__(self) -> int:
        return id(self)

    def find(self, users: UserKeys) -> FoundUsers:
        return _Found(self, users)

    def take_in(self, rows: UserRows) -> None:
        """Add what a delta says."""
        for place, user in enumerate(rows.users.tolist()):
            self.rows[user] = tuple(column[place].copy() for column in rows.records)
            new = rows.seen.of(place).tolist()
            assert not set(new) & set(self.items[user])
            self.items[user] += new


@dataclass(frozen=True)
class _Found:
    table: Any
    users: UserKeys

    def records(self) -> Records:
        found = unknown_users(len(self.users), self.table.length)
        for place, user in enumerate(self.users.tolist()):
            if user in self.table.rows:
                for column, values in zip(found, self.table.rows[user], strict=True):
                    column[place] = values
        return found

    def seen(self, asked: Any) -> SeenItems:
        found = [self.table.items[user] for user in self.users[asked].tolist()]
        offsets = np.cumsum([0, *map(len, found)])
        flat = np.array([item for one in found for item in one], np.int64)
        return SeenItems(flat, offsets, np.zeros(len(found), np.bool_))
