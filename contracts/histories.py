"""User histories as columns: each user's last L positive items, with their times.

The pipeline attaches them to examples, the server asks them for a user's recent items. Both build them from
committed windows in commit order, so any copy can be rebuilt from there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.keys import PADDING_KEY, ItemKeys, UserKeys

__all__ = ["Events", "Histories"]

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Events(NamedTuple):
    """Events as parallel columns of length n, in the order that resolves equal times."""

    users: UserKeys
    items: ItemKeys
    times: Int64
    positive: Bool


class _Merged(NamedTuple):
    """State and events in one column set, sorted by user and time; `event` is -1 for rows of the state."""

    users: UserKeys
    items: ItemKeys
    times: Int64
    positive: Bool
    event: Int64


@dataclass
class Histories:
    """Histories of the users in `users` (u,), sorted; `items` and `times` are (u, length), oldest first.

    Where a user has fewer items, `items` starts with `PADDING_KEY`.
    """

    users: UserKeys
    items: ItemKeys
    times: Int64

    @classmethod
    def empty(cls, length: int) -> "Histories":
        """Return the histories of no users, of at most `length` items each."""
        nothing = np.empty((0, length), np.int64)
        return cls(UserKeys(np.empty(0, np.int64)), ItemKeys(nothing), nothing)

    @property
    def length(self) -> int:
        """The number of items kept for each user."""
        return int(self.items.shape[1])

    def lookup(self, users: UserKeys) -> ItemKeys:
        """Return the items of the given users, (n, length); all padding for those unknown."""
        if not len(self.users):
            return ItemKeys(np.full((len(users), self.length), PADDING_KEY, np.int64))
        place = np.minimum(np.searchsorted(self.users, users), len(self.users) - 1)
        return ItemKeys(np.where((self.users[place] == users)[:, None], self.items[place], PADDING_KEY))

    def extend(self, events: Events) -> ItemKeys:
        """Add events and return each one's history before it, (n, length), in the order given.

        An event sees the positives of its user that are older, or as old and earlier in order. One that comes
        late takes its place in time; its history may be shorter than it would have been in time, because
        only `length` items are remembered, and never holds a later item.
        """
        merged = self._merge(events)
        starts = _starts(merged.users)
        before: Int64 = np.cumsum(merged.positive) - merged.positive
        floor: Int64 = before[starts][np.cumsum(starts) - 1]
        asked = merged.event >= 0
        history = np.empty((len(events.users), self.length), np.int64)
        keys = merged.items[merged.positive]
        history[merged.event[asked]] = _last(keys, before[asked], floor[asked], self.length, PADDING_KEY)
        self._replace(merged, starts, before, floor)
        return ItemKeys(history)

    def _merge(self, events: Events) -> _Merged:
        touched = np.isin(self.users, events.users)
        row, column = np.nonzero(touched[:, None] & (self.items != PADDING_KEY))
        old = len(row)
        users = np.concatenate([self.users[row], events.users])
        times = np.concatenate([self.times[row, column], events.times])
        order = np.lexsort((times, users))
        return _Merged(
            UserKeys(users[order]),
            ItemKeys(np.concatenate([self.items[row, column], events.items])[order]),
            times[order],
            np.concatenate([np.ones(old, np.bool_), events.positive])[order],
            np.concatenate([np.full(old, -1), np.arange(len(events.users))])[order],
        )

    def _replace(self, merged: _Merged, starts: Bool, before: Int64, floor: Int64) -> None:
        ends = np.roll(starts, -1)
        stop = (before + merged.positive)[ends]
        keys, times = merged.items[merged.positive], merged.times[merged.positive]
        kept = ~np.isin(self.users, merged.users)
        users = np.concatenate([self.users[kept], merged.users[ends]])
        items = np.concatenate([self.items[kept], _last(keys, stop, floor[ends], self.length, PADDING_KEY)])
        stamps = np.concatenate([self.times[kept], _last(times, stop, floor[ends], self.length, 0)])
        order = np.argsort(users)
        self.users, self.items, self.times = UserKeys(users[order]), ItemKeys(items[order]), stamps[order]


def _starts(users: UserKeys) -> Bool:
    """Mark the first row of every user's run."""
    starts = np.ones(len(users), np.bool_)
    starts[1:] = users[1:] != users[:-1]
    return starts


def _last(values: Int64, stop: Int64, floor: Int64, length: int, fill: int) -> Int64:
    """Return values[max(floor, stop - length):stop] for each row, aligned to the right of (n, length)."""
    index = stop[:, None] - length + np.arange(length)
    valid = index >= floor[:, None]
    if not len(values):
        return np.full(index.shape, fill, np.int64)
    return np.where(valid, values[np.where(valid, index, 0)], fill)
