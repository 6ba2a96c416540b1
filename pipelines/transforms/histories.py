"""Histories: attach to every event what its user had chosen before it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from contracts import Events, ItemKeys, Label, columns, examples_schema
from pipelines.positions import Run
from pipelines.transforms.deduplicate import ShardWindow
from pipelines.user_state import UserState

__all__ = ["AttachHistories"]


class AttachHistories(beam.DoFn):
    """(shard, its `ShardWindow`s of the run) to the same with `history` columns, window after window.

    The state of a shard is read once and serves all its windows; nothing of it is kept, because the commits of
    the run are not made yet.
    """

    def __init__(self, state: UserState, run: Run, history_length: int) -> None:
        self._state = state
        self._run = run
        self._length = history_length

    def process(self, element: tuple[int, Iterable[ShardWindow]]) -> Iterator[ShardWindow]:
        """Attach histories to the windows of one shard, in order of time."""
        shard, windows = element
        histories = self._state.load(shard, self._run.base.cursor.sequence - 1)
        for window in sorted(windows, key=lambda window: window.name):
            yield replace(window, rows=self._attached(window.rows, histories.extend(_events(window.rows))))

    def _attached(self, rows: pa.Table, history: ItemKeys) -> pa.Table:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(history.ravel()), self._length)
        return rows.append_column(examples_schema(self._length).field(columns.HISTORY), lists)


def _events(rows: pa.Table) -> Events:
    users, items, times = (rows[name].to_numpy() for name in (columns.USER_KEY, columns.ITEM_KEY, columns.TIMESTAMP))
    return Events(users, items, times, pc.equal(rows[columns.LABEL], int(Label.POSITIVE)).to_numpy())
