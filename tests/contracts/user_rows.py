"""Rows of users from a plain dictionary: user -> (total, [(item, time)], [seen items], bounded)."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from weir.contracts import ItemKeys, Records, SeenItems, Store, UserKeys, UserRows, write_user_file
from weir.contracts.storage.store import FileEntry

Plain: TypeAlias = Mapping[int, tuple[int, list[tuple[int, int]], list[int], bool]]


def rows_of(plain: Plain, length: int) -> UserRows:
    users = np.array(sorted(plain), np.int64)
    totals = np.array([plain[user][0] for user in sorted(plain)], np.int64)
    items, times = np.zeros((2, len(users), length), np.int64)
    for place, user in enumerate(sorted(plain)):
        for column, (item, time) in enumerate(reversed(plain[user][1])):
            items[place, length - 1 - column], times[place, length - 1 - column] = item, time
    seen = [plain[user][2] for user in sorted(plain)]
    offsets = np.cumsum([0, *map(len, seen)])
    flat = np.array([item for one in seen for item in one], np.int64)
    bounded = np.array([plain[user][3] for user in sorted(plain)], np.bool_)
    return UserRows(
        UserKeys(users), Records(totals, ItemKeys(items), times), SeenItems(ItemKeys(flat), offsets, bounded)
    )


def write_rows(store: Store, name: str, plain: Plain, length: int, *, bound: int = 1000, block: int = 3) -> FileEntry:
    """Write a file in blocks of so many users."""
    users = sorted(plain)
    blocks = [
        rows_of({user: plain[user] for user in users[start : start + block]}, length)
        for start in range(0, len(users), block)
    ]
    seen = sum(len(row[2]) for row in plain.values())
    return write_user_file(store, name, blocks, users=len(users), seen=seen, length=length, bound=bound)
