"""Look-up of users' histories and seen items, independent of where they are stored."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from weir.contracts import PADDING_KEY, ItemKeys, SeenItems, UserKeys

__all__ = ["Histories", "KnownUsers", "nothing_known"]

Int64 = npt.NDArray[np.int64]


class KnownUsers(NamedTuple):
    """Newest positives of n users, `items` (n, L), oldest first, and the `seen` items of the requested ones.

    Unknown users have only padding. `seen.bounded` marks users whose seen items are incomplete: not all stored, or not
    available yet.
    """

    items: ItemKeys
    seen: SeenItems


class Histories(Protocol):
    """A source of user histories."""

    def look_up(self, users: UserKeys, asked: Int64) -> KnownUsers:
        """Look up users (n,), and the seen items of those at the distinct positions `asked`."""


def nothing_known(users: int, asked: int, *, bounded: bool = False) -> KnownUsers:
    """Return empty records for `users` unknown users, and empty seen items for `asked` of them."""
    items = ItemKeys(np.full((users, 1), PADDING_KEY, np.int64))
    empty = ItemKeys(np.empty(0, np.int64))
    return KnownUsers(items, SeenItems(empty, np.zeros(asked + 1, np.int64), np.full(asked, bounded)))
