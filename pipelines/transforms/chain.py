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
    """Turns `Reading`s into a dict: `Block`s (``blocks``), and by tag dead letters of whole files and progress."""

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
    """Turns valid interactions into the commit of the run, if there is anything to commit.

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
        assign = beam.ParDo(AssignWindows(store, run)).with_output_types(Keyed)
        assigned = read[ROWS] | "AssignWindows" >> assign.with_outputs(PROGRESS, main="keyed")
        seen = (read[PROGRESS], assigned[PROGRESS]) | "All progress" >> beam.Flatten()
        progress = beam.pvalue.AsSingleton(seen | "Merge progress" >> beam.CombineGlobally(MergeProgress()))  # type: ignore[no-untyped-call]
        emit = beam.ParDo(EmitClosed(store, run, config), progress).with_output_types(tuple[int, ShardSlice])
        rows = self._with_pending(assigned.keyed, progress)
        emitted = rows | "EmitClosed" >> emit.with_outputs(OPEN, DEAD, main="slices")
        # Write each collection separately: after a Flatten, Beam would hold all letters of a run until its last block.
        letters = [
            refused | f"Write dead letters {number}" >> beam.ParDo(WriteDeadLetters(store, run))
            for number, refused in enumerate((*read[DEAD], emitted[DEAD]))
            if refused != ()
        ]
        shards = (
            emitted.slices
            | "Group by shard" >> beam.GroupByKey()
            | "De-duplicate" >> beam.ParDo(Deduplicate(store, run))
        )
        start = read[PROGRESS].pipeline | "Start" >> beam.Create([Start()], reshuffle=False)
        written, deltas = self._write(shards)
        parts = (start, *letters, emitted[OPEN], written, deltas, self._count(shards))
        return (
            parts
            | "All parts" >> beam.Flatten()
            | "One committer" >> beam.Map(_to_one)
            | "Group the run" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(CommitRun(store, run, config), progress).with_output_types(Commit)
        )

    def _with_pending(self, keyed: Any, progress: Any) -> Any:
        """Return the collection of keyed rows with the pending rows of earlier runs, if there are any."""
        if not self._run.open_rows:
            return keyed
        files = keyed.pipeline | "Pending rows" >> beam.Create(self._run.open_rows, reshuffle=False)
        pending = files | "ReloadPending" >> beam.ParDo(ReloadPending(self._store, self._run), progress)
        return (keyed, pending) | "All rows" >> beam.Flatten()

    def _write(self, shards: Any) -> tuple[Any, Any]:
        """Attach histories and exposure, and write the examples; return shard reports, and history files."""
        store, run, config = self._store, self._run, self._config
        attach = beam.ParDo(AttachHistories(store, run, config, self._before)).with_output_types(ShardWindow)
        attached = shards | "Attach histories" >> attach.with_outputs(DELTAS, main="windows")
        windows = attached.windows
        if config.exposed_items:
            attach_exposure = beam.ParDo(AttachExposure(store, run, config)).with_output_types(ShardWindow)
            windows = windows | "Attach exposure" >> attach_exposure
        return windows | "Write shards" >> beam.ParDo(WriteShards(store, run, config)), attached[DELTAS]

    def _count(self, shards: Any) -> Any:
        """Return the collection of the `WindowSketches` of all windows."""
        return (
            shards
            | "Items and users" >> beam.FlatMap(_items_and_users)
            | "Count" >> beam.CombinePerKey(CountItemsAndUsers(self._config.sketch))
            | "Name the window" >> beam.MapTuple(lambda start_ms, counted: WindowSketches(start_ms, *counted))
        )


class BlocksToWindows(RowsToWindows):
    """Turns the output of `ReadBlocks` into the commit of the run: validates rows, then applies `RowsToWindows`."""

    def expand(self, read: Any) -> Any:
        """Add the transforms."""
        validated = read["blocks"] | "Validate" >> beam.ParDo(Validate(self._config)).with_outputs(DEAD, main=ROWS)
        letters = (read[DEAD], validated[DEAD])
        return super().expand({ROWS: validated[ROWS], DEAD: letters, PROGRESS: read[PROGRESS]})


def _items_and_users(shard: tuple[int, list[ShardWindow]]) -> Iterator[tuple[int, tuple[pa.Table, pa.Table]]]:
    """Yield (window start in ms, (its items, its users)) for the windows of a shard."""
    for window in shard[1]:
        yield window.name.start_ms, (window.items, window.users)


def _to_one(part: RunPart) -> tuple[int, RunPart]:
    """Give every element one key, so that one worker commits the run."""
    return 0, part
