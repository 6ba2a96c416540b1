"""Served lists without forgotten users.

No commit names these files, so there is nothing to commit: each is written again without the users' rows, then removed.
Killed in between, both are there; readers take the one with fewer rows, and the next redaction removes the other.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weir.contracts import Store, UserKeys, columns
from weir.contracts.served import all_served, read_served, write_served

__all__ = ["RemovedLists", "forget_served"]


class RemovedLists(NamedTuple):
    """What was removed: rows of so many files, and the keys of the users whom they named."""

    files: int
    lists: int
    users: frozenset[int]


def forget_served(store: Store, users: UserKeys) -> RemovedLists:
    """Remove the served lists of some users; raises `CorruptArtefactError` for a damaged file."""
    files, lists, held = 0, 0, set[int]()
    for file in all_served(store):
        named = read_served(store, file, [columns.USER_KEY])
        if named is None or not (theirs := np.isin(_keys(named), users)).any():
            continue
        table = read_served(store, file)
        if table is None:
            continue
        if not theirs.all():
            write_served(store, file.segment, table.filter(pa.array(~theirs)))
        store.remove(file.name)
        files, lists = files + 1, lists + int(theirs.sum())
        held |= set(_keys(table)[theirs].tolist())
    return RemovedLists(files, lists, frozenset(held))


def _keys(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the users of lists; 0, which is no user's key, where a list names none."""
    keys: np.ndarray[tuple[int], np.dtype[np.int64]] = table[columns.USER_KEY].fill_null(0).to_numpy()
    return keys
