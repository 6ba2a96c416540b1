"""Test cases from interactions, by one of two protocols, and the items to rank.

`each_interaction` makes a case of every test interaction, with its one item relevant (sequential models, temporal and
leave-one-out splits); `each_user` makes one of every user, with all of the user's test items relevant (collaborative
filtering, random splits).
"""

import numpy as np

from trainer.offline.data import Interactions, Ints
from trainer.ranking import Cases, Lists

__all__ = ["each_interaction", "each_user", "top_items_and_positives"]


def each_interaction(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per row, in the order of `rows`, whose one relevant item is the row's."""
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
