"""De-duplicate: the pieces of one window and user shard to one table in order of time, each event once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contracts import CommitLog, Label, Store, WindowCounts, WindowLog, WindowName, columns
from contracts.log_state import Panes
from contracts.redacted_panes import as_redacted
from pipelines.committed_panes import panes_before, redacted_before
from pipelines.item_features import observed
from pipelines.positions import Run
from pipelines.transforms.split import Piece

__all__ = ["Deduplicate", "ShardWindow"]

_IDENTITY: Final = [columns.USER_KEY, columns.EVENT_KEY]
_NOBODY: Final = pa.table({name: pa.array([], pa.int64()) for name in _IDENTITY})


@dataclass(frozen=True)
class ShardWindow:
    """The events of one user shard in one pane of a window, in order of time; ignored ones are only counted.

    `items` are the items of the positive events with their counts (`ITEMS_SCHEMA`, in any order), `users` the keys of
    their users with theirs, `features` what the positive events say of their items (`observed`).
    """

    name: WindowName
    shard: int
    rows: pa.Table
    items: pa.Table
    users: pa.Table
    features: pa.Table | None
    counts: WindowCounts
    min_event_ms: int
    max_event_ms: int


class Deduplicate(beam.DoFn):
    """(shard, `Piece`s) of a window to `ShardWindow`.

    Events of a user with one `event_id` count once per window, also across panes: the first in order of
    (time, partition, position) stays. An event without one is never a duplicate.
    """

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def setup(self) -> None:
        """Open the committed windows."""
        self._log, self._commits = WindowLog(self._store), CommitLog(self._store)

    def process(
        self, element: tuple[int, Iterable[Piece]], window: Any = beam.DoFn.WindowParam
    ) -> Iterator[ShardWindow]:
        """Merge the pieces of one window and shard."""
        shard, pieces = element
        start = window.start.micros // 1000
        panes = panes_before(self._store, self._run.base.cursor, start)
        name = self._run.name(start, panes)
        rows = _in_order(pieces)
        kept = rows.take(pa.array(np.flatnonzero(self._first_of_each(rows, panes, start, shard))))
        labels = kept[columns.LABEL].to_numpy()
        times = rows[columns.TIMESTAMP].to_numpy()
        counts = WindowCounts(
            events=int((labels != Label.IGNORE).sum()),
            positives=int((labels == Label.POSITIVE).sum()),
            negatives=int((labels == Label.NEGATIVE).sum()),
            ignored=int((labels == Label.IGNORE).sum()),
            duplicates=len(rows) - len(kept),
            late=int((labels != Label.IGNORE).sum()) if name.pane else 0,
        )
        events = kept.take(pa.array(np.flatnonzero(labels != Label.IGNORE)))
        examples = events.drop_columns(
            [name for name in (columns.ITEM_ID, columns.FEATURES) if name in events.column_names]
        )
        positive = events.filter(pc.equal(events[columns.LABEL], int(Label.POSITIVE)))
        items, users, features = _items(positive), _users(positive), observed(positive)
        yield ShardWindow(name, shard, examples, items, users, features, counts, int(times.min()), int(times.max()))

    def _first_of_each(self, rows: pa.Table, panes: Panes, start_ms: int, shard: int) -> npt.NDArray[np.bool_]:
        identified = np.flatnonzero(rows[columns.EVENT_KEY].is_valid().to_numpy())
        first = np.ones(len(rows), np.bool_)
        if len(identified):
            found = _identities(rows.select(_IDENTITY).take(pa.array(identified)))
            before = self._committed(panes.commit, start_ms, shard)
            first[identified] = _is_first(np.concatenate([before, found]))[len(before) :]
        return first

    def _committed(self, number: int, start_ms: int, shard: int) -> npt.NDArray[np.void]:
        """Return the identities of a window's committed events, pane by pane, the last one first."""
        found, redacted = [_identities(_NOBODY)], redacted_before(self._store, self._run.base.cursor)
        while number >= 0:
            listed = (pane for pane in self._commits.get(number).panes if pane.start_ms == start_ms)
            [pane] = (as_redacted(self._commits, pane, redacted) for pane in listed)
            if shard in pane.examples:
                found.append(_identities(self._log.examples(pane, shard, _IDENTITY).drop_null()))
            number = pane.previous
        return np.concatenate(found)


def _identities(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return (user key, event key) of rows as one column (n,)."""
    pairs = np.empty(len(rows), [(name, np.int64) for name in _IDENTITY])
    for name in _IDENTITY:
        pairs[name] = rows[name].to_numpy()
    return pairs


def _is_first(identities: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Mark, of equal identities (n,), the first."""
    # np.unique, which sorts whole records, takes four times as long.
    users, events = (identities[name] for name in _IDENTITY)
    order = np.lexsort((events, users))
    users, events = users[order], events[order]
    differs = np.ones(len(order), np.bool_)
    differs[1:] = (users[1:] != users[:-1]) | (events[1:] != events[:-1])
    first = np.zeros(len(order), np.bool_)
    first[order[differs]] = True
    return first


def _items(positive: pa.Table) -> pa.Table:
    # Shards of a window are small: starting threads would take longer than the work.
    grouped = positive.group_by(columns.ITEM_KEY, use_threads=False)
    items = grouped.aggregate([(columns.ITEM_ID, "min"), (columns.ITEM_KEY, "count")])
    return items.rename_columns([columns.ITEM_KEY, columns.ITEM_ID, columns.COUNT])


def _users(positive: pa.Table) -> pa.Table:
    grouped = positive.group_by(columns.USER_KEY, use_threads=False)
    return grouped.aggregate([(columns.USER_KEY, "count")]).rename_columns([columns.USER_KEY, columns.COUNT])


def _in_order(pieces: Iterable[Piece]) -> pa.Table:
    found = sorted(pieces, key=lambda piece: piece.partition)
    rows = pa.Table.from_batches([piece.rows for piece in found])
    partitions = np.repeat(np.arange(len(found)), [piece.rows.num_rows for piece in found])
    # Pieces of one partition share its rank, so that positions decide between them.
    names = [piece.partition for piece in found]
    rank = np.cumsum([0, *(before != after for before, after in pairwise(names))])[partitions]
    order = np.lexsort((rows[columns.POSITION].to_numpy(), rank, rows[columns.TIMESTAMP].to_numpy()))
    return rows.take(pa.array(order)).combine_chunks()
