"""Splits of interactions into training, validation and test, and test cases from the test part.

Each split lets training see something of the test (a leak), which its function documents.

`each_interaction` makes a case per test interaction, with one relevant item (sequential models, temporal and
leave-one-out splits); `each_user` makes a case per user, with all of the user's test items relevant (collaborative
filtering, random splits).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.data import SPLIT, Interactions, InteractionsError, Ints
from weir.trainer.ranking.cases import Cases, Lists, slices

__all__ = [
    "Past",
    "Split",
    "each_interaction",
    "each_user",
    "items_by_user",
    "labelled",
    "leave_one_out",
    "newest_rows",
    "random_per_user",
    "temporal",
    "top_items_and_positives",
]


_LABELS: Final = ("train", "val", "test")
_FEWEST: Final = 3
"""Least number of interactions of a user who is tested, so that one is left for training."""


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of each part in `Interactions`, ascending, so in order of time; every row is in exactly one part."""

    train: Ints
    validation: Ints
    test: Ints


def temporal(interactions: Interactions, validation: float = 0.1, test: float = 0.1) -> Split:
    """Cut all interactions at two moments: train before validation before test ("temporal split", Sun 2023).

    The split closest to production: no training on the future. Limits: users and items that occur only
    after the cut are cold, and unknown to models without content; and interactions with equal times may fall on both
    sides of a cut, in the order of the source.

    Parameters
    ----------
    validation, test
        Shares of all interactions, rounded to the nearest number of rows.

    Raises
    ------
    InteractionsError
        Without timestamps, or with shares that leave no training part.
    """
    if interactions.timestamps is None:
        raise InteractionsError(
            f"{interactions.source}: has no timestamps, which a temporal split needs; "
            "call their column timestamp, or split leave-one-out or at random"
        )
    _check_shares(interactions, validation, test)
    rows, last = np.arange(len(interactions)), len(interactions) - round(len(interactions) * test)
    first = last - round(len(interactions) * validation)
    return Split(rows[:first], rows[first:last], rows[last:])


def labelled(interactions: Interactions) -> Split:
    """Split by the source's own column ``split`` (train, val, test); any leak depends on its author.

    Raises
    ------
    InteractionsError
        Without such a column, with other labels, or without any row to train on.
    """
    if interactions.split is None:
        raise InteractionsError(
            f"{interactions.source}: has no column {SPLIT!r}; add one with {', '.join(_LABELS)}, or split by time"
        )
    if unknown := sorted(set(interactions.split.tolist()) - set(_LABELS), key=str):
        raise InteractionsError(
            f"{interactions.source}: column {SPLIT!r} has {unknown[0]!r}; allowed are {', '.join(_LABELS)}"
        )
    train, validation, test = (np.flatnonzero(interactions.split == label) for label in _LABELS)
    if not len(train):
        raise InteractionsError(
            f"{interactions.source}: column {SPLIT!r} is never 'train'; there is nothing to train on"
        )
    return Split(train, validation, test)


def leave_one_out(interactions: Interactions) -> Split:
    """Test on the last interaction of each user, validate on the one before; users with fewer than 3 only train.

    The protocol of SASRec and gSASRec (Petrov & Macdonald 2023). Leak: users end at different times, so training
    includes interactions of other users after a user's test interaction, and so which items became popular later.
    """
    from_last = _count_down(interactions.users)
    enough = np.bincount(interactions.users)[interactions.users] >= _FEWEST
    return _by_mask(enough & (from_last == 1), enough & (from_last == 0))


def random_per_user(interactions: Interactions, share: float = 0.2, validation: float = 0.1, *, seed: int = 0) -> Split:
    """Test on a random `share` of each user's interactions, and validate on a share `validation` of the rest.

    The 80/20 protocol of collaborative filtering, for data without times. Leak: training includes
    later interactions of all users; metrics measure how well gaps are filled, not how well the next item is predicted.

    Parameters
    ----------
    share, validation
        Share of each user's interactions to test on, and share of the user's other interactions to validate on, rounded
        to whole interactions; at least one is left for training.
    seed
        Seed of the random choice.
    """
    _check_shares(interactions, share, validation)
    users = interactions.users
    draws = np.random.default_rng(seed).random(len(users))
    order = np.lexsort((draws, users))
    position = np.empty_like(users)
    position[order] = _count_down(users[order])
    counts = np.bincount(users)
    tests = np.minimum(np.rint(counts * share).astype(np.int64), counts - 1)
    left = counts - tests
    validations = np.minimum(np.rint(left * validation).astype(np.int64), left - 1)
    is_test = position < tests[users]
    return _by_mask(~is_test & (position < (tests + validations)[users]), is_test)


def _count_down(users: Ints) -> Ints:
    """Return for each row the number of later rows of its user, (N,)."""
    order = np.argsort(users, kind="stable")
    ends = np.cumsum(np.bincount(users))
    later = np.empty_like(users)
    later[order] = ends[users[order]] - 1 - np.arange(len(users))
    return later


def _by_mask(validation: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> Split:
    return Split(np.flatnonzero(~validation & ~test), np.flatnonzero(validation), np.flatnonzero(test))


def _check_shares(interactions: Interactions, first: float, second: float) -> None:
    if first < 0 or second < 0 or first + second >= 1:
        raise InteractionsError(
            f"{interactions.source}: shares {first} and {second}; allowed are shares from 0 with a sum below 1"
        )


def each_interaction(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per row, in the order of `rows`, with the row's item as the only relevant one."""
    return Cases(interactions.users[rows], Lists(np.arange(len(rows) + 1), interactions.items[rows]))


def each_user(interactions: Interactions, rows: Ints) -> Cases:
    """Return a case per user of `rows`, in order of code; all its items in `rows` are relevant, each once."""
    pairs = np.unique(np.stack([interactions.users[rows], interactions.items[rows]], 1), axis=0)
    users, case = np.unique(pairs[:, 0], return_inverse=True)
    return Cases(users, Lists.grouped(case, pairs[:, 1], len(users)))


def top_items_and_positives(counts: Ints, k: int, test_items: Ints) -> Ints:
    """Return the `k` items with the highest `counts` (I,), and all `test_items`, ascending and each once.

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
    """Return U lists: for each user, the items of the interactions `rows`, in the order of `rows`."""
    return Lists.grouped(interactions.users[rows], interactions.items[rows], len(interactions.user_ids))


def newest_rows(rows: Ints, starts: Ints, ends: Ints, length: int) -> Tensor:
    """Return the newest `length` of ``rows[starts[i] : ends[i]]`` for each i, (n, length), padded on the left."""
    positions = ends[:, None] - np.arange(length, 0, -1)
    # Positions before the start may be negative; they are masked.
    newest = np.where(positions >= starts[:, None], rows[np.clip(positions, 0, len(rows) - 1)], PADDING)
    return torch.from_numpy(newest)
