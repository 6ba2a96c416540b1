"""Some users of a data set, with all that they did: a smaller data set with whole histories."""

from dataclasses import replace

import numpy as np

from weir.trainer.offline.data import Interactions
from weir.trainer.step.seeds import Purpose, derive

__all__ = ["sample_users"]


def sample_users(interactions: Interactions, at_most: int) -> Interactions:
    """Return the interactions of random users, always the same ones, who have `at_most` together.

    At least one user stays. Where all fit, the interactions come back as they are.
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
