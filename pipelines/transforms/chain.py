"""The chain of transforms, from readings to committed windows; independent of the driver.

Elements are Arrow record batches and tables, never single rows. The rows of a shard are shuffled once, and everything
derived from them is made on the same worker.
"""

from collections.abc import Iterator
from typing import Any, Final

import apache_beam as beam
import pyarrow as pa

from weir.contracts import Commit, HistoryFiles, Store
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.run import Run
from weir.pipelines.transforms.commit import CommitRun, RunPart, Start, WindowSketches, WriteShards
from weir.pipelines.transforms.count import CountItemsAndUsers
from weir.pipelines.transforms.deduplicate import Deduplicate, ShardWindow
from weir.pipelines.transforms.exposure import AttachExposure
from weir.pipelines.transforms.histories import DELTAS, AttachHistories
from weir.pipelines.transforms.read import DEAD, PROGRESS, ListChunks, ReadChunk, Validate, WriteDeadLetters
from weir.pipelines.transforms.split import (
    OPEN,
    AssignWindows,
    EmitClosed,
    Keyed,
    MergeProgress,
    ReloadPending,
    ShardSlice,
)

__all__ = ["ROWS", "BlocksToWindows", "ReadBlocks", "RowsToWindows"]

ROWS: Final = "rows"
"""The tag of valid interactions (`ValidatedBlock`)."""


class ReadBlocks(beam.PTransform[Any, Any]):
    """`Reading`s to a dict: blocks under ``blocks``, letters and progress of whole files under `DEAD`, `PROGRESS`."""

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__()
        self._config = config

    def expand(self, readings: Any) -> Any:
        """Add the transforms."""
        listed = readings | "List chunks" >> beam.ParDo(ListChunks(self._config)).with_outputs(
            DEAD, PROGRESS, main="chunks"
        )
        # Let different workers read chunks of one file.
        blocks = listed.chunks | "Spread" >> beam.Reshuffle() | "Read" >> beam.ParDo(ReadChunk(self._config))
        return {"blocks": blocks, DEAD: listed[DEAD], PROGRESS: listed[PROGRESS]}


class RowsToWindows(beam.PTransform[Any, Any]):
    """Valid interactions to the commit of the run, if there is anything to commit.

    The input is a dict: interactions under `ROWS`, progress under `PROGRESS`, and a tuple of collections of dead
    letters under `DEAD`. `before` are the history files before the run.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig, before: HistoryFiles) -> None:
        super().__init__()
        self._store, self._run, self._config = store, run, config
        self._before = before

    def expand(self, read: Any) -> Any:
        """Add the transforms."""
        store, run, config = self._store, self._run, self._config
        locate = beam.ParDo(AssignWindows(store, run)).with_output_types(Keyed)
        located = read[ROWS] | "AssignWindows" >> locate.with_outputs(PROGRESS, main="keyed")
        seen = (read[PROGRESS], located[PROGRESS]) | "All progress" >> beam.Flatten()
        progress = beam.pvalue.AsSingleton(seen | "Merge progress" >> beam.CombineGlobally(MergeProgress()))  # type: ignore[no-untyped-call]
        release = beam.ParDo(EmitClosed(store, run, config), progress).with_output_types(tuple[int, ShardSlice])
        rows = self._with_rows_in_hand(located.keyed, progress)
        released = rows | "EmitClosed" >> release.with_outputs(OPEN, DEAD, main="pieces")
        # Write each collection separately: after a Flatten, Beam would hold all letters of a run until its last block.
        letters = [
            found | f"Write dead letters {number}" >> beam.ParDo(WriteDeadLetters(store, run))
            for number, found in enumerate((*read[DEAD], released[DEAD]))
            if found != ()
        ]
        shards = (
            released.pieces
            | "Group by shard" >> beam.GroupByKey()
            | "De-duplicate" >> beam.ParDo(Deduplicate(store, run))
        )
        start = read[PROGRESS].pipeline | "Start" >> beam.Create([Start()], reshuffle=False)
        written, deltas = self._write(shards)
        parts = (start, *letters, released[OPEN], written, deltas, self._count(shards))
        return (
            parts
            | "All parts" >> beam.Flatten()
            | "One committer" >> beam.Map(_to_one)
            | "Group the run" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(CommitRun(store, run, config), progress).with_output_types(Commit)
        )

    def _with_rows_in_hand(self, keyed: Any, progress: Any) -> Any:
        """Add the pending rows of earlier runs, if there are any."""
        if not self._run.open_rows:
            return keyed
        kept = keyed.pipeline | "Rows in hand" >> beam.Create(self._run.open_rows, reshuffle=False)
        reopened = kept | "ReloadPending" >> beam.ParDo(ReloadPending(self._store, self._run), progress)
        return (keyed, reopened) | "All rows" >> beam.Flatten()

    def _write(self, shards: Any) -> tuple[Any, Any]:
        """Add the writing of examples and history files; return the collections of their reports."""
        store, run, config = self._store, self._run, self._config
        attach = beam.ParDo(AttachHistories(store, run, config, self._before)).with_output_types(ShardWindow)
        attached = shards | "Attach histories" >> attach.with_outputs(DELTAS, main="windows")
        windows = attached.windows
        if config.exposed_items:
            attach_exposure = beam.ParDo(AttachExposure(store, run, config)).with_output_types(ShardWindow)
            windows = windows | "Attach exposure" >> attach_exposure
        return windows | "Write shards" >> beam.ParDo(WriteShards(store, run, config)), attached[DELTAS]

    def _count(self, shards: Any) -> Any:
        return (
            shards
            | "Items and users" >> beam.FlatMap(_items_and_users)
            | "Count" >> beam.CombinePerKey(CountItemsAndUsers(self._config.sketch))
            | "Name the window" >> beam.MapTuple(lambda start_ms, counted: WindowSketches(start_ms, *counted))
        )


class BlocksToWindows(RowsToWindows):
    """The output of `ReadBlocks` to the commit of the run: validates, then applies `RowsToWindows`."""

    def expand(self, read: Any) -> Any:
        """Add the transforms."""
        validated = read["blocks"] | "Validate" >> beam.ParDo(Validate(self._config)).with_outputs(DEAD, main=ROWS)
        letters = (read[DEAD], validated[DEAD])
        return super().expand({ROWS: validated[ROWS], DEAD: letters, PROGRESS: read[PROGRESS]})


def _items_and_users(shard: tuple[int, list[ShardWindow]]) -> Iterator[tuple[int, tuple[pa.Table, pa.Table]]]:
    for window in shard[1]:
        yield window.name.start_ms, (window.items, window.users)


def _to_one(part: RunPart) -> tuple[int, RunPart]:
    return 0, part
