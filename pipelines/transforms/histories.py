"""Histories: attach to each event its user's earlier positives, and write the updated user records."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from weir.contracts import (
    PADDING_KEY,
    FoundUsers,
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    Label,
    Records,
    SeenItems,
    Store,
    UserKeys,
    UserRows,
    UserTable,
    WindowCounts,
    examples_schema,
    open_shard,
    write_user_file,
)
from weir.contracts.base import columns
from weir.contracts.histories.user_rows import unite
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run import Run
from weir.pipelines.transforms.deduplicate import ShardWindow

__all__ = ["DELTAS", "AttachHistories", "Attached", "TouchedUsers", "write_delta"]

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

DELTAS: Final = "deltas"
"""The tag of written user files (`HistoryFile`)."""

_AT_ONCE: Final = 1 << 16
"""Events whose histories are gathered at once."""


class Attached(NamedTuple):
    """The history before each of n events, item keys (n, L), and a mask (n,) of `unknown` histories, left empty."""

    history: ItemKeys
    unknown: Bool


class _Events(NamedTuple):
    """Events in order of time, each column (n,); `owner` is the index of the user."""

    owner: Int64
    items: Int64
    times: Int64
    positive: Bool

    def take(self, places: Int64) -> "_Events":
        """Return the events at the given indices."""
        return _Events(self.owner[places], self.items[places], self.times[places], self.positive[places])


class _Merged(NamedTuple):
    """The items of user records and new events in the same columns (n,), ordered by user and time.

    `owner` is the index of the user, `counts` whether the item enters later histories, `event` the index of the event,
    or -1 for an item of a record.
    """

    owner: Int64
    items: Int64
    times: Int64
    counts: Bool
    event: Int64


@dataclass
class TouchedUsers:
    """The users of the events of one shard and run, with their `records`, which `extend` updates in place.

    `found` is the look-up of these users, ascending and distinct, in the files before the run. `history` is the length
    L of the history of an event; a record may hold more items, so that late events get their true history.
    """

    found: FoundUsers
    records: Records
    history: int
    _owners: list[Int64] = field(default_factory=list, init=False, repr=False)
    _items: list[Int64] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, before: UserTable, users: UserKeys, history: int) -> "TouchedUsers":
        """Look up users (n,), in any order and with repeats, in the files before the run; `history` is L."""
        found = before.find(UserKeys(np.unique(users)))
        return cls(found, found.records(), history)

    @property
    def users(self) -> UserKeys:
        """The keys (n,), ascending."""
        return self.found.users

    def extend(self, rows: pa.Table) -> Attached:
        """Add the events of a window, in order of time, and return the history before each.

        `rows` needs the columns user key, item key, timestamp and label. The history of an event are the last L
        positives of its user that are older, or as old and earlier in order. It is unknown if fewer than L items of the
        record precede the event and the record has dropped older items.
        """
        names = (columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP)
        users, items, times = (rows[name].to_numpy() for name in names)
        positive = pc.equal(rows[columns.LABEL], int(Label.POSITIVE)).to_numpy()
        owner = np.searchsorted(self.users, users)
        self._owners.append(owner)
        self._items.append(items)
        events = _Events(owner, items, times, positive)
        is_late = np.zeros(len(self.users), np.bool_)
        is_late[owner[times < self.records.times[owner, -1]]] = True
        late = is_late[owner]
        if len(users) and not late.any():
            return self._append(events)
        attached = Attached(ItemKeys(np.empty((len(users), self.history), np.int64)), np.empty(len(users), np.bool_))
        for places, add in ((np.flatnonzero(~late), self._append), (np.flatnonzero(late), self._insert)):
            if len(places):
                attached.history[places], attached.unknown[places] = add(events.take(places))
        return attached

    @property
    def _length(self) -> int:
        return int(self.records.items.shape[1])

    def _append(self, events: _Events) -> Attached:
        """Add events that are not older than the records of their users, and return the history before each."""
        order = np.argsort(events.owner, kind="stable")
        owner, counts = events.owner[order], events.positive[order]
        is_first = np.diff(owner, prepend=-1) != 0
        touched, group = owner[is_first], np.cumsum(is_first) - 1
        totals, kept_items, kept_times = self.records.take(touched)
        # Concatenate the records, each followed by the user's new positives; the past of an event ends at `at`.
        at = (group + 1) * self._length + np.cumsum(counts) - counts
        starts, new = at[is_first] - self._length, order[counts]
        items = _joined(kept_items, events.items[new], starts, at[counts])
        times = _joined(kept_times, events.times[new], starts, at[counts])
        history, unknown = np.empty((len(order), self.history), np.int64), np.empty(len(order), np.bool_)
        before = sliding_window_view(items, self.history)
        for start in range(0, len(order), _AT_ONCE):
            # In pieces: a second copy of all histories would be the largest array of a run.
            piece = slice(start, start + _AT_ONCE)
            history[order[piece]] = before[at[piece] - self.history]
        kept = (kept_items != PADDING_KEY).sum(axis=1)
        unknown[order] = (totals > kept)[group] & (kept[group] + at - starts[group] - self._length < self.history)
        history[unknown] = PADDING_KEY
        last = np.append(starts[1:], len(items)) - self._length
        self.records.items[touched] = sliding_window_view(items, self._length)[last]
        self.records.times[touched] = sliding_window_view(times, self._length)[last]
        self.records.totals[touched] += np.bincount(group, counts, len(touched)).astype(np.int64)
        return Attached(ItemKeys(history), unknown)

    def _insert(self, events: _Events) -> Attached:
        """Add events of users with a late event: sort record items and events by time; return the histories."""
        owner, items, times, positive = events
        touched, local = np.unique(owner, return_inverse=True)
        is_cut, oldest = self._reach(touched)
        # Older than all kept items of a cut record: it belongs to the dropped part.
        is_before = is_cut[local] & (times < oldest[local])
        merged = self._merge(touched, local, items, times, positive & ~is_before)
        before: Int64 = np.cumsum(merged.counts) - merged.counts
        floor = before[np.searchsorted(merged.owner, merged.owner)]
        asked = np.flatnonzero(merged.event >= 0)
        event = merged.event[asked]
        history = np.empty((len(owner), self.history), np.int64)
        history[event] = _last(merged.items[merged.counts], before[asked], floor[asked], self.history, PADDING_KEY)
        unknown = np.empty(len(owner), np.bool_)
        unknown[event] = is_cut[merged.owner[asked]] & (before[asked] - floor[asked] < self.history)
        history[unknown] = PADDING_KEY
        self._replace(touched, merged, np.bincount(local, positive, len(touched)).astype(np.int64))
        return Attached(ItemKeys(history), unknown)

    def _reach(self, touched: Int64) -> tuple[Bool, Int64]:
        """Return whether each user's record has dropped positives, and the time of the oldest kept one."""
        totals, items, times = self.records.take(touched)
        kept = (items != PADDING_KEY).sum(axis=1)
        oldest = times[np.arange(len(touched)), np.minimum(self._length - kept, self._length - 1)]
        return totals > kept, oldest

    def _merge(self, touched: Int64, local: Int64, items: Int64, times: Int64, counts: Bool) -> _Merged:
        """Merge the record items of `touched` users with events (n,); `local` (n,) indexes `touched`."""
        _, kept, kept_times = self.records.take(touched)
        row, column = np.nonzero(kept != PADDING_KEY)
        owner, all_times = np.concatenate([row, local]), np.concatenate([kept_times[row, column], times])
        order = np.lexsort((all_times, owner))
        return _Merged(
            owner[order],
            np.concatenate([kept[row, column], items])[order],
            all_times[order],
            np.concatenate([np.ones(len(row), np.bool_), counts])[order],
            np.concatenate([np.full(len(row), -1), np.arange(len(items))])[order],
        )

    def _replace(self, touched: Int64, merged: _Merged, positives: Int64) -> None:
        """Set the records of `touched` users to the newest merged items; add `positives` to their totals."""
        stops = np.cumsum(np.bincount(merged.owner, merged.counts, len(touched)).astype(np.int64))
        floors = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
        totals, items, times = self.records
        totals[touched] += positives
        items[touched] = _last(merged.items[merged.counts], stops, floors, self._length, PADDING_KEY)
        times[touched] = _last(merged.times[merged.counts], stops, floors, self._length, 0)

    def delta(self, bound: int) -> UserRows:
        """Return the complete records of the users, and at most `bound` new seen items of each."""
        owners, items = np.concatenate(self._owners), np.concatenate(self._items)
        earlier = self._maybe_seen(owners, items)
        owners, items = np.concatenate([earlier[0], owners]), np.concatenate([earlier[1], items])
        order = np.lexsort((items, owners))
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (owners[order][1:] != owners[order][:-1]) | (items[order][1:] != items[order][:-1])
        # The sort is stable, so the first of equal pairs is the earliest.
        new = np.sort(order[is_first])
        new = new[new >= len(earlier[0])]
        new = new[np.argsort(owners[new], kind="stable")]
        counts = np.bincount(owners[new], minlength=len(self.users))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        seen = SeenItems(ItemKeys(items[new]), offsets, np.zeros(len(self.users), np.bool_))
        return UserRows(self.users, self.records, unite([seen], bound))

    def _maybe_seen(self, owners: Int64, items: Int64) -> tuple[Int64, Int64]:
        """Return the (owner, item) pairs (m,) seen before the run that may equal one of the given pairs (n,)."""
        seen = self.found.seen(np.arange(len(self.users)))
        before = np.repeat(np.arange(len(self.users)), np.diff(seen.offsets))
        # The low bits of key plus owner exclude most seen items; the caller compares the rest exactly.
        mask = (1 << (8 * len(items)).bit_length()) - 1
        among = np.zeros(mask + 1, np.bool_)
        among[(items + owners) & mask] = True
        places = np.flatnonzero(among[(seen.items + before) & mask])
        return before[places], seen.items[places]


def write_delta(store: Store, name: str, shard: int, rows: UserRows, bound: int) -> HistoryFile:
    """Write the rows of a shard's users as the file `name`, with at most `bound` seen items each; return its entry."""
    length = rows.records.items.shape[1]
    file = write_user_file(
        store, name, [rows], users=len(rows.users), seen=len(rows.seen.items), length=length, bound=bound
    )
    return HistoryFile.of(name, file, shard, length)


def _joined(records: Int64, new: Int64, starts: Int64, places: Int64) -> Int64:
    """Return a flat array with the records (n, L) from `starts` (n,) on and the new values (m,) at `places` (m,)."""
    joined = np.empty(records.size + len(new), np.int64)
    sliding_window_view(joined, records.shape[1], writeable=True)[starts] = records
    joined[places] = new
    return joined


def _last(values: Int64, stop: Int64, floor: Int64, length: int, fill: int) -> Int64:
    """Return values[max(floor, stop - length):stop] for each of n rows, right-aligned in (n, length), else `fill`."""
    index = stop[:, None] - length + np.arange(length)
    valid = index >= floor[:, None]
    if not len(values):
        return np.full(index.shape, fill, np.int64)
    return np.where(valid, values[np.where(valid, index, 0)], fill)


class AttachHistories(beam.DoFn):
    """Yields, for (shard, its `ShardWindow`s of the run), the windows in order of time with a `history` column.

    The users of the shard are looked up once in the history files `before` the run. Their updated records are written
    as one file, tagged `DELTAS`, which counts only once committed; work that Beam repeats writes another file.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig, before: HistoryFiles) -> None:
        self._store = store
        self._run = run
        self._length, self._bound, self._cache = config.history_length, config.seen_items, config.cache
        self._kept_items = config.kept_items
        self._before = before

    def process(self, element: tuple[int, Iterable[ShardWindow]]) -> Iterator[Any]:
        """Attach histories to the windows of one shard, in order of time."""
        shard, windows = element
        in_order = sorted(windows, key=lambda window: window.name)
        before = open_shard(self._store, self._before, shard, self._kept_items, self._cache)
        users = np.concatenate([window.rows[columns.USER_KEY].to_numpy() for window in in_order])
        touched = TouchedUsers.of(before, UserKeys(users), self._length)
        for window in in_order:
            history, unknown = touched.extend(window.rows)
            counts = window.counts + WindowCounts(unknown_histories=int(unknown.sum()))
            yield replace(window, rows=self._attached(window.rows, history), counts=counts)
        if len(users):
            yield beam.pvalue.TaggedOutput(DELTAS, self._delta(shard, touched))

    def _delta(self, shard: int, touched: TouchedUsers) -> HistoryFile:
        """Write the updated records of a shard's users as a new history file; return its entry."""
        name = HistoryFile.path(shard, self._run.id, secrets.token_hex(4))
        return write_delta(self._store, name, shard, touched.delta(self._bound), self._bound)

    def _attached(self, rows: pa.Table, history: ItemKeys) -> pa.Table:
        """Return the rows with their histories (n, L) as a further column."""
        lists = pa.FixedSizeListArray.from_arrays(pa.array(history.ravel()), self._length)
        return rows.append_column(examples_schema(self._length).field(columns.HISTORY), lists)
