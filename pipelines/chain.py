"""The chain of transforms, from what is to be read to committed windows; it knows nothing of the driver.

Elements are Arrow record batches and tables, never single rows. Batches carry the time of their window, and the
grouping by window is Beam's own, so that it means the same in a batch and in a streaming runner.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import apache_beam as beam
from apache_beam.transforms.window import FixedWindows, GlobalWindows

from contracts import Commit, HistoryFiles, Store
from pipelines.config import PipelineConfig
from pipelines.positions import Run
from pipelines.run_commit import Made, Start, WindowSketches
from pipelines.transforms.commit import CommitRun
from pipelines.transforms.count import CountItemsAndUsers
from pipelines.transforms.dead_letters import WriteDeadLetters
from pipelines.transforms.deduplicate import Deduplicate, ShardWindow
from pipelines.transforms.histories import DELTAS, AttachHistories
from pipelines.transforms.read import PROGRESS, ListChunks, ReadChunk
from pipelines.transforms.split import OPEN, Locate, MergeProgress, Release, Reopen
from pipelines.transforms.validate import DEAD, Validate
from pipelines.transforms.write import WriteShards

__all__ = ["ROWS", "BlocksToWindows", "ReadBlocks", "RowsToWindows"]

ROWS: Final = "rows"
"""The tag of valid interactions (`ValidatedBlock`)."""


class ReadBlocks(beam.PTransform[Any, Any]):
    """`Reading`s to a dict: blocks under ``blocks``, and what is already known of files under `DEAD`, `PROGRESS`."""

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__()
        self._config = config

    def expand(self, readings: Any) -> Any:
        """Add the transforms."""
        listed = readings | "List chunks" >> beam.ParDo(ListChunks(self._config)).with_outputs(
            DEAD, PROGRESS, main="chunks"
        )
        # Chunks of one file may be read by different workers.
        blocks = listed.chunks | "Spread" >> beam.Reshuffle() | "Read" >> beam.ParDo(ReadChunk(self._config))
        return {"blocks": blocks, DEAD: listed[DEAD], PROGRESS: listed[PROGRESS]}


class RowsToWindows(beam.PTransform[Any, Any]):
    """Valid interactions to the commit of the run, if it has anything to commit.

    They come as a dict: `ROWS`, what was seen under `PROGRESS`, and collections of dead letters under `DEAD`.
    `together` makes the windowing under which the windows of a run meet, for the histories of a shard and for the
    order of commits: the end of the input for a bounded run. An unbounded driver gives a trigger. `before` are the
    files of histories before the run.
    """

    def __init__(
        self,
        store: Store,
        run: Run,
        config: PipelineConfig,
        before: HistoryFiles,
        together: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self._store, self._run, self._config = store, run, config
        self._together = together or partial(beam.WindowInto, GlobalWindows())
        self._before = before

    def expand(self, read: Any) -> Any:
        """Add the transforms."""
        store, run, config = self._store, self._run, self._config
        located = read[ROWS] | "Locate" >> beam.ParDo(Locate(store, run)).with_outputs(PROGRESS, main="keyed")
        seen = (read[PROGRESS], located[PROGRESS]) | "All progress" >> beam.Flatten()
        progress = beam.pvalue.AsSingleton(seen | "Merge progress" >> beam.CombineGlobally(MergeProgress()))  # type: ignore[no-untyped-call]
        released = self._with_rows_in_hand(located.keyed, progress) | "Release" >> beam.ParDo(
            Release(store, run, config), progress
        ).with_outputs(OPEN, DEAD, main="pieces")
        letters = (
            (*read[DEAD], released[DEAD])
            | "All dead letters" >> beam.Flatten()
            | "Write dead letters" >> beam.ParDo(WriteDeadLetters(store, run))
        )
        shards = (
            released.pieces
            | "Window" >> beam.WindowInto(FixedWindows(config.window_seconds))
            | "Group by shard" >> beam.GroupByKey()
            | "De-duplicate" >> beam.ParDo(Deduplicate(store, run))
        )
        start = read[PROGRESS].pipeline | "Start" >> beam.Create([Start()], reshuffle=False)
        written, deltas = self._write(shards)
        parts = (start, letters, released[OPEN], written, deltas, self._count(shards))
        return (
            parts
            | "All parts" >> beam.Flatten()
            | "One committer" >> beam.Map(_to_one)
            | "Group the run" >> beam.GroupByKey()
            | "Commit" >> beam.ParDo(CommitRun(store, run, config), progress).with_output_types(Commit)
        )

    def _with_rows_in_hand(self, keyed: Any, progress: Any) -> Any:
        """Add the rows that earlier runs have kept; a run without any is spared the transforms."""
        if not self._run.open_rows:
            return keyed
        kept = keyed.pipeline | "Rows in hand" >> beam.Create(self._run.open_rows, reshuffle=False)
        reopened = kept | "Reopen" >> beam.ParDo(Reopen(self._store, self._run), progress)
        return (keyed, reopened) | "All rows" >> beam.Flatten()

    def _write(self, shards: Any) -> tuple[Any, Any]:
        """Add what writes the examples, and the files of users; return the reports of both."""
        store, run, config = self._store, self._run, self._config
        attached = (
            shards
            | "Together" >> self._together()
            | "Key by shard" >> beam.Map(_by_shard)
            | "Group windows" >> beam.GroupByKey()
            | "Attach histories"
            >> beam.ParDo(AttachHistories(store, run, config, self._before)).with_outputs(DELTAS, main="windows")
        )
        written = attached.windows | "Write shards" >> beam.ParDo(WriteShards(store, run, config.history_length))
        return written, attached[DELTAS]

    def _count(self, shards: Any) -> Any:
        return (
            shards
            | "Items and users" >> beam.Map(lambda shard: (shard.items, shard.users))
            | "Count" >> beam.CombineGlobally(CountItemsAndUsers(self._config.sketch)).without_defaults()
            | "Name the window" >> beam.Map(_of_window)
            | "Sketches together" >> self._together()
        )


class BlocksToWindows(RowsToWindows):
    """The output of `ReadBlocks` to the commit of the run: `RowsToWindows` of the rows that are valid."""

    def expand(self, read: Any) -> Any:
        """Add the transforms."""
        validated = read["blocks"] | "Validate" >> beam.ParDo(Validate(self._config)).with_outputs(DEAD, main=ROWS)
        letters = (read[DEAD], validated[DEAD])
        return super().expand({ROWS: validated[ROWS], DEAD: letters, PROGRESS: read[PROGRESS]})


def _by_shard(window: ShardWindow) -> tuple[int, ShardWindow]:
    return window.shard, window


def _to_one(part: Made) -> tuple[int, Made]:
    return 0, part


def _of_window(sketches: tuple[bytes, bytes], window: Any = beam.DoFn.WindowParam) -> WindowSketches:
    return WindowSketches(window.start.micros // 1000, *sketches)
