"""What the server knows of users, wherever it is stored."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from weir.contracts import PADDING_KEY, ItemKeys, SeenItems, UserKeys

__all__ = ["Histories", "KnownUsers", "nothing_known"]

Int64 = npt.NDArray[np.int64]


class KnownUsers(NamedTuple):
    """Of n users their newest positives, `items` (n, L), oldest first, and the `seen` items of those asked for.

    A user of whom nothing is known has only padding; `seen.bounded` says that some of it is not stored, or not here.
    """

    items: ItemKeys
    seen: SeenItems


class Histories(Protocol):
    """A place in which users are looked up."""

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Return what is known of users, (n,), and what those at the rows `asked`, distinct, have seen."""


def nothing_known(users: int, asked: int, *, bounded: bool = False) -> KnownUsers:
    """Return what is known of so many users of whom nothing is."""
    items = ItemKeys(np.full((users, 1), PADDING_KEY, np.int64))
    empty = ItemKeys(np.empty(0, np.int64))
    return KnownUsers(items, SeenItems(empty, np.zeros(asked + 1, np.int64), np.full(asked, bounded)))
