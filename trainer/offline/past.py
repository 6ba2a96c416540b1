"""The history that a test case may use: what its user did before."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.items.table import FIRST_ITEM, PADDING
from trainer.offline.data import Interactions, Ints
from trainer.ranking.cases import slices

__all__ = ["Past", "newest_rows", "user_starts"]


@dataclass(frozen=True, eq=False)
class Past:
    """The histories of C cases: of case i the items ``items[starts[i] : ends[i]]``, oldest first."""

    items: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of_interactions(cls, interactions: Interactions, rows: Ints) -> "Past":
        """Return what the user of each of the interactions `rows` (C,) did before it, in all of the data."""
        order = np.argsort(interactions.users, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        starts = user_starts(interactions.users, len(interactions.user_ids))
        return cls(interactions.items[order], starts[interactions.users[rows]], position[rows])

    @classmethod
    def of_users(cls, interactions: Interactions, train: Ints, users: Ints) -> "Past":
        """Return what each of `users` (C,) did in the interactions `train`."""
        order = train[np.argsort(interactions.users[train], kind="stable")]
        counts = np.bincount(interactions.users[train], minlength=len(interactions.user_ids))
        starts = user_starts(interactions.users[train], len(interactions.user_ids))
        return cls(interactions.items[order], starts[users], (starts + counts)[users])

    def histories(self, length: int) -> Tensor:
        """Return the newest items as table rows (C, length), padded on the left."""
        return newest_rows(self.items + FIRST_ITEM, self.starts, self.ends, length)

    def take(self, cases: Ints) -> tuple[Ints, Ints]:
        """Return all items that `cases` may use, (m,), and for each the position of its case in `cases`, (m,)."""
        return slices(self.items, self.starts[cases], self.ends[cases])


def user_starts(users: Ints, count: int) -> Ints:
    """Return where each user's interactions start once they are sorted by user, (count,)."""
    sizes = np.bincount(users, minlength=count)
    starts: Ints = np.cumsum(sizes) - sizes
    return starts


def newest_rows(rows: Ints, starts: Ints, ends: Ints, length: int) -> Tensor:
    """Return the last `length` rows before each of `ends` (n,), none before `starts` (n,), padded on the left."""
    positions = ends[:, None] - np.arange(length, 0, -1)
    # Positions before the start may be negative; they are masked.
    newest = np.where(positions >= starts[:, None], rows[np.clip(positions, 0, len(rows) - 1)], PADDING)
    return torch.from_numpy(newest)
