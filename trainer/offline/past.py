"""What users did before: the history that a test case may see."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.items.table import FIRST_ITEM, PADDING
from trainer.offline.data import Interactions, Ints
from trainer.offline.ranking import slices

__all__ = ["Past", "user_starts", "windows"]


@dataclass(frozen=True, eq=False)
class Past:
    """Of each of C cases the items ``items[starts[i] : ends[i]]``, oldest first."""

    items: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def of_interactions(cls, interactions: Interactions, asked: Ints) -> "Past":
        """Return what the user of each interaction `asked` (C,) did before it, in all of the data."""
        order = np.argsort(interactions.users, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts = user_starts(interactions.users, len(interactions.user_ids))
        return cls(interactions.items[order], starts[interactions.users[asked]], place[asked])

    @classmethod
    def of_users(cls, interactions: Interactions, known: Ints, users: Ints) -> "Past":
        """Return what each of `users` (C,) did in the interactions `known`."""
        order = known[np.argsort(interactions.users[known], kind="stable")]
        counts = np.bincount(interactions.users[known], minlength=len(interactions.user_ids))
        starts = user_starts(interactions.users[known], len(interactions.user_ids))
        return cls(interactions.items[order], starts[users], (starts + counts)[users])

    def histories(self, length: int) -> Tensor:
        """Return the newest items as table rows (C, length), padded on the left."""
        return windows(self.items + FIRST_ITEM, self.starts, self.ends, length)

    def take(self, cases: Ints) -> tuple[Ints, Ints]:
        """Return all items of the `cases` (m,), and for each the place of its case among them (m,)."""
        return slices(self.items, self.starts[cases], self.ends[cases])


def user_starts(users: Ints, count: int) -> Ints:
    """Return where each user's interactions begin once they are sorted by user, (count,)."""
    sizes = np.bincount(users, minlength=count)
    starts: Ints = np.cumsum(sizes) - sizes
    return starts


def windows(rows: Ints, starts: Ints, ends: Ints, length: int) -> Tensor:
    """Return the last `length` rows before each of `ends` (n,), none before `starts` (n,), padded on the left."""
    places = ends[:, None] - np.arange(length, 0, -1)
    # An end may be 0, where there is nothing to take.
    found = np.where(places >= starts[:, None], rows[np.clip(places, 0, len(rows) - 1)], PADDING)
    return torch.from_numpy(found)
