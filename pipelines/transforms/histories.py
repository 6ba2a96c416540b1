"""Histories: attach to every event what its user had chosen before it, and write what became of the users."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa

from weir.contracts import (
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    Store,
    UserKeys,
    WindowCounts,
    columns,
    examples_schema,
    open_shard,
)
from weir.pipelines.config import PipelineConfig
from weir.pipelines.positions import Run
from weir.pipelines.transforms.deduplicate import ShardWindow
from weir.pipelines.user_state import TouchedUsers, write_delta

__all__ = ["DELTAS", "AttachHistories"]

DELTAS: Final = "deltas"
"""The tag of the files of users (`HistoryFile`)."""


class AttachHistories(beam.DoFn):
    """(shard, its `ShardWindow`s of the run) to the same with `history` columns, window after window.

    The users of the run are looked up once in the files before it. What becomes of them is one file, which leaves by
    the tag `DELTAS` and counts for nothing before the commit; a bundle that is retried writes another one.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig, before: HistoryFiles) -> None:
        self._store = store
        self._run = run
        self._length, self._bound, self._cache = config.history_length, config.seen_items, config.cache
        self._kept = config.kept_items
        self._before = before

    def process(self, element: tuple[int, Iterable[ShardWindow]]) -> Iterator[Any]:
        """Attach histories to the windows of one shard, in order of time."""
        shard, windows = element
        in_order = sorted(windows, key=lambda window: window.name)
        before = open_shard(self._store, self._before, shard, self._kept, self._cache)
        users = np.concatenate([window.rows[columns.USER_KEY].to_numpy() for window in in_order])
        touched = TouchedUsers.of(before, UserKeys(users), self._length)
        for window in in_order:
            history, unknown = touched.extend(window.rows)
            counts = window.counts + WindowCounts(unknown_histories=int(unknown.sum()))
            yield replace(window, rows=self._attached(window.rows, history), counts=counts)
        if len(users):
            yield beam.pvalue.TaggedOutput(DELTAS, self._delta(shard, touched))

    def _delta(self, shard: int, touched: TouchedUsers) -> HistoryFile:
        name = HistoryFile.path(shard, self._run.id, secrets.token_hex(4))
        return write_delta(self._store, name, shard, touched.delta(self._bound), self._bound)

    def _attached(self, rows: pa.Table, history: ItemKeys) -> pa.Table:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(history.ravel()), self._length)
        return rows.append_column(examples_schema(self._length).field(columns.HISTORY), lists)
