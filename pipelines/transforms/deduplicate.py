"""De-duplicate: merge the rows of one window and user shard into one table in order of time, each event once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import (
    CommitLog,
    ExposureCounts,
    FeatureNames,
    Label,
    Store,
    WindowCounts,
    WindowLog,
    WindowName,
    items_schema,
)
from weir.contracts.base import columns
from weir.contracts.commits.log_state import Panes
from weir.contracts.commits.window_log import as_redacted
from weir.pipelines.runs.run import Run, panes_before, redacted_before
from weir.pipelines.transforms.read import large
from weir.pipelines.transforms.split import ShardSlice
from weir.readers import Int64

__all__ = ["Deduplicate", "ShardWindow", "newest_known", "observed"]

_IDENTITY: Final = [columns.USER_KEY, columns.EVENT_KEY]
_NO_EVENTS: Final = pa.table({name: pa.array([], pa.int64()) for name in _IDENTITY})


def observed(rows: pa.Table) -> pa.Table | None:
    """Return the keyed rows that hold the newest known value of some item feature; None without item features.

    The columns are item key, user key, timestamp and features, as `newest_known` needs.
    """
    if columns.FEATURES not in rows.column_names:
        return None
    selected = rows.select([columns.ITEM_KEY, columns.USER_KEY, columns.TIMESTAMP, columns.FEATURES])
    return selected.take(pa.array(np.unique(np.concatenate([*_newest(selected).values()]))))


def newest_known(items: pa.Table, parts: Sequence[pa.Table], names: FeatureNames) -> pa.Table:
    """Add a column per feature to `items` (ordered by key): the newest known value in `parts`, tables of `observed`."""
    if not names.all:
        return items
    rows = pa.concat_tables(parts).combine_chunks()
    keys = rows[columns.ITEM_KEY].to_numpy()
    struct = rows[columns.FEATURES].combine_chunks()
    for name, newest in _newest(rows).items():
        place = np.searchsorted(items[columns.ITEM_KEY].to_numpy(), keys[newest])
        index = np.full(len(items), -1)
        index[place] = newest
        values = struct.field(name).take(pa.array(index, mask=index < 0))
        items = items.append_column(name, values)
    return items.cast(items_schema(names))


def _newest(rows: pa.Table) -> dict[str, Int64]:
    """Return feature -> indices of the rows with the newest known value of each item (m <= number of items).

    Ties in time go to the largest user key, then to the last row, so the result does not depend on chunks or shards.
    """
    keys = rows[columns.ITEM_KEY].to_numpy()
    order = np.lexsort((rows[columns.USER_KEY].to_numpy(), rows[columns.TIMESTAMP].to_numpy()))[::-1]
    newest: dict[str, Int64] = {}
    for feature in rows.schema.field(columns.FEATURES).type:
        values = pc.struct_field(rows[columns.FEATURES], feature.name)
        known = order[values.is_valid().to_numpy()[order]]
        _, first = np.unique(keys[known], return_index=True)
        newest[feature.name] = known[first]
    return newest


@large
@dataclass(frozen=True)
class ShardWindow:
    """The events of one user shard in one pane of a window, in order of time, without ignored events.

    `items` are the items of positive events with their counts (`ITEMS_SCHEMA`, unordered), `users` the user keys with
    their counts, `features` the newest item features in positive events (`observed`). `counts` includes ignored events.
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
    exposure: ExposureCounts = field(default_factory=ExposureCounts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


class Deduplicate(beam.DoFn):
    """Turns (shard, its `ShardSlice`s) into (shard, its `ShardWindow`s in order of time).

    Events of a user with one `event_id` count once per window, also across panes: the first in order of (time,
    partition, position) stays. An event without an id is never a duplicate.
    """

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def setup(self) -> None:
        """Open the committed windows."""
        self._log, self._commits = WindowLog(self._store), CommitLog(self._store)

    def process(self, element: tuple[int, Iterable[ShardSlice]]) -> Iterator[tuple[int, list[ShardWindow]]]:
        """Merge the slices of one shard, window by window."""
        shard, slices = element
        of_window = defaultdict[int, list[ShardSlice]](list)
        for rows in slices:
            of_window[rows.start_ms].append(rows)
        yield shard, [self._merged(shard, start, of_window[start]) for start in sorted(of_window)]

    def _merged(self, shard: int, start: int, slices: list[ShardSlice]) -> ShardWindow:
        """Return one shard of the window that starts at `start` (ms), without duplicates."""
        panes = panes_before(self._store, self._run.base.cursor, start)
        name = self._run.name(start, panes)
        rows = _in_order(slices)
        distinct = _where(rows, self._first_of_each(rows, panes, start, shard))
        labels = distinct[columns.LABEL].to_numpy()
        times = rows[columns.TIMESTAMP].to_numpy()
        counts = WindowCounts(
            events=int((labels != Label.IGNORE).sum()),
            positives=int((labels == Label.POSITIVE).sum()),
            negatives=int((labels == Label.NEGATIVE).sum()),
            ignored=int((labels == Label.IGNORE).sum()),
            duplicates=len(rows) - len(distinct),
            late=int((labels != Label.IGNORE).sum()) if name.pane else 0,
        )
        events, positive = _where(distinct, labels != Label.IGNORE), _where(distinct, labels == Label.POSITIVE)
        examples = events.drop_columns(
            [name for name in (columns.ITEM_ID, columns.FEATURES) if name in events.column_names]
        )
        items, users, features = _items(positive), _users(positive), observed(positive)
        return ShardWindow(name, shard, examples, items, users, features, counts, int(times.min()), int(times.max()))

    def _first_of_each(self, rows: pa.Table, panes: Panes, start_ms: int, shard: int) -> npt.NDArray[np.bool_]:
        """Mark the rows (n,) whose event is neither in an earlier row nor in an earlier pane of the window."""
        identified = np.flatnonzero(rows[columns.EVENT_KEY].is_valid().to_numpy())
        first = np.ones(len(rows), np.bool_)
        if len(identified):
            events = _identities(rows.select(_IDENTITY).take(pa.array(identified)))
            before = self._committed(panes.commit, start_ms, shard)
            first[identified] = _is_first(np.concatenate([before, events]))[len(before) :]
        return first

    def _committed(self, number: int, start_ms: int, shard: int) -> npt.NDArray[np.void]:
        """Return (user key, event key) of a window's committed events in a shard, as one structured column (n,).

        `number` is the commit of the window's newest pane, -1 without one; older panes follow.
        """
        events, redacted = [_identities(_NO_EVENTS)], redacted_before(self._store, self._run.base.cursor)
        while number >= 0:
            listed = (pane for pane in self._commits.get(number).panes if pane.start_ms == start_ms)
            [pane] = (as_redacted(self._commits, pane, redacted) for pane in listed)
            if shard in pane.examples:
                events.append(_identities(self._log.examples(pane, shard, _IDENTITY).drop_null()))
            number = pane.previous
        return np.concatenate(events)


def _identities(rows: pa.Table) -> npt.NDArray[np.void]:
    """Return (user key, event key) of rows as one structured column (n,)."""
    pairs = np.empty(len(rows), [(name, np.int64) for name in _IDENTITY])
    for name in _IDENTITY:
        pairs[name] = rows[name].to_numpy()
    return pairs


def _is_first(identities: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Mark the first of equal identities (n,)."""
    # np.unique sorts whole records, which takes four times as long.
    users, events = (identities[name] for name in _IDENTITY)
    order = np.lexsort((events, users))
    users, events = users[order], events[order]
    differs = np.ones(len(order), np.bool_)
    differs[1:] = (users[1:] != users[:-1]) | (events[1:] != events[:-1])
    first = np.zeros(len(order), np.bool_)
    first[order[differs]] = True
    return first


def _where(rows: pa.Table, marked: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the marked rows (n,), without a copy if all are marked."""
    return rows if marked.all() else rows.filter(pa.array(marked))


def _items(positive: pa.Table) -> pa.Table:
    """Return the distinct items of positives: key, id and count."""
    keys, first, counts = np.unique(positive[columns.ITEM_KEY].to_numpy(), return_index=True, return_counts=True)
    # Accepted rows of one key have one id.
    values = [keys, positive[columns.ITEM_ID].take(pa.array(first)), counts]
    return pa.table(values, names=[columns.ITEM_KEY, columns.ITEM_ID, columns.COUNT])


def _users(positive: pa.Table) -> pa.Table:
    """Return the distinct user keys of positives with their counts."""
    return pa.table(
        np.unique(positive[columns.USER_KEY].to_numpy(), return_counts=True), names=[columns.USER_KEY, columns.COUNT]
    )


def _in_order(slices: Iterable[ShardSlice]) -> pa.Table:
    """Return the rows of all slices in order of (time, partition, position)."""
    parts = sorted(slices, key=lambda part: part.partition)
    # Rows of a rebuild have one column more than rows of the log.
    tables = [pa.Table.from_batches([part.rows]) for part in parts]
    rows = pa.concat_tables(tables, promote_options="default")
    partitions = np.repeat(np.arange(len(parts)), [part.rows.num_rows for part in parts])
    # Slices of one partition share its rank, so that positions order their rows.
    names = [part.partition for part in parts]
    rank = np.cumsum([0, *(before != after for before, after in pairwise(names))])[partitions]
    order = np.lexsort((rows[columns.POSITION].to_numpy(), rank, rows[columns.TIMESTAMP].to_numpy()))
    return rows.take(pa.array(order)).combine_chunks()
