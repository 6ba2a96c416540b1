"""Test cases from interactions by one of two protocols, their histories, and the items to rank.

`each_interaction` makes a case per test interaction, with one relevant item (sequential models, temporal and
leave-one-out splits); `each_user` makes a case per user, with all of the user's test items relevant (collaborative
filtering, random splits).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.ranking.cases import Cases, Lists, slices

__all__ = ["Past", "each_interaction", "each_user", "items_by_user", "newest_rows", "top_items_and_positives"]


def each_interaction(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per row, in the order of `rows`, with the row's item as the only relevant one."""
    return Cases(interactions.users[rows], Lists(np.arange(len(rows) + 1), interactions.items[rows]))


def each_user(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per user of `rows`, in order of code; all its items in `rows` are relevant, each once."""
    pairs = np.unique(np.stack([interactions.users[rows], interactions.items[rows]], 1), axis=0)
    users, case = np.unique(pairs[:, 0], return_inverse=True)
    return Cases(users, Lists.grouped(case, pairs[:, 1], len(users)))


def top_items_and_positives(counts: Ints, k: int, test_items: Ints) -> Ints:
    """Return the `k` items of the highest `counts`, (I,), and all `test_items`, ascending and each once.

    The evaluation index of "Correcting the LogQ Correction" (evaluation protocol; k was 2 million there). Ties go to
    the lower code.
    """
    return np.union1d(np.argsort(-counts, kind="stable")[:k], test_items)


@dataclass(frozen=True, eq=False)
class Past:
    """Histories of C cases: case i has the items ``items[starts[i] : ends[i]]``, oldest first."""

    items: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of_interactions(cls, interactions: Interactions, rows: Ints) -> "Past":
        """Return for each of the interactions `rows` (C,) its user's earlier items, from all of the data."""
        by_user = items_by_user(interactions, np.arange(len(interactions)))
        # The inverse of the order in which the items are grouped.
        position = np.argsort(np.argsort(interactions.users, kind="stable"))
        return cls(by_user.values, by_user.offsets[interactions.users[rows]], position[rows])

    @classmethod
    def of_users(cls, interactions: Interactions, train: Ints, users: Ints) -> "Past":
        """Return the items of each of `users` (C,) in the interactions `train`."""
        by_user = items_by_user(interactions, train)
        return cls(by_user.values, by_user.offsets[users], by_user.offsets[users + 1])

    def histories(self, length: int) -> Tensor:
        """Return the newest items as table rows (C, length), padded on the left."""
        return newest_rows(self.items + FIRST_ITEM, self.starts, self.ends, length)

    def take(self, cases: Ints) -> tuple[Ints, Ints]:
        """Return all history items of `cases`, (m,), and for each the position of its case in `cases`, (m,)."""
        return slices(self.items, self.starts[cases], self.ends[cases])


def items_by_user(interactions: Interactions, rows: Ints) -> Lists:
    """Return the items of the interactions `rows` by user, (U,), each user's in the order of `rows`."""
    return Lists.grouped(interactions.users[rows], interactions.items[rows], len(interactions.user_ids))


def newest_rows(rows: Ints, starts: Ints, ends: Ints, length: int) -> Tensor:
    """Return the last `length` rows before each of `ends` (n,), none before `starts` (n,), padded on the left."""
    positions = ends[:, None] - np.arange(length, 0, -1)
    # Positions before the start may be negative; they are masked.
    newest = np.where(positions >= starts[:, None], rows[np.clip(positions, 0, len(rows) - 1)], PADDING)
    return torch.from_numpy(newest)
