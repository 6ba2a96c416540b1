"""Sample users of a data set with all their interactions: a smaller data set with complete histories."""

from dataclasses import replace

import numpy as np

from weir.trainer.offline.data import Interactions
from weir.trainer.step.seeds import Purpose, derive

__all__ = ["sample_users"]


def sample_users(interactions: Interactions, at_most: int) -> Interactions:
    """Return the interactions of a fixed random sample of users, at most `at_most` interactions in total.

    At least one user is kept. If all interactions fit, they are returned unchanged.
    """
    if len(interactions) <= at_most:
        return interactions
    counts = np.bincount(interactions.users)
    order = np.random.default_rng(derive(0, Purpose.EVALUATION, 1)).permutation(len(counts))
    fitting = int(np.searchsorted(np.cumsum(counts[order]), at_most, side="right"))
    is_chosen = np.zeros(len(counts), np.bool_)
    is_chosen[order[: max(fitting, 1)]] = True
    rows = np.flatnonzero(is_chosen[interactions.users])
    users, user_codes = np.unique(interactions.users[rows], return_inverse=True)
    items, item_codes = np.unique(interactions.items[rows], return_inverse=True)
    return replace(
        interactions,
        users=user_codes,
        items=item_codes,
        timestamps=None if interactions.timestamps is None else interactions.timestamps[rows],
        user_ids=interactions.user_ids[users],
        item_ids=interactions.item_ids[items],
        split=None if interactions.split is None else interactions.split[rows],
    )
