"""Split: batches of interactions to pieces, each of one event-time window and one user shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue

from contracts import columns, hash_ids
from pipelines.blocks import Batch, Int64, PartitionProgress, Progress
from pipelines.config import PipelineConfig
from pipelines.positions import Run
from pipelines.transforms.read import PROGRESS

__all__ = ["Keyed", "Locate", "MergeProgress", "Piece", "Release", "runs_of"]

_KEYED: Final = (columns.ITEM_ID, columns.TIMESTAMP, columns.LABEL, columns.WEIGHT, columns.ATTRIBUTION_TOKEN)


@dataclass(frozen=True)
class Keyed:
    """Interactions of a partition that have not been counted, with keys; `windows` (n,) are window starts in ms."""

    partition: str
    windows: Int64
    rows: pa.RecordBatch


@dataclass(frozen=True)
class Piece:
    """The rows of `Keyed` that belong to one window and one user shard."""

    partition: str
    rows: pa.RecordBatch


class Locate(beam.DoFn):
    """`Batch` to `Keyed`: drops rows that have been counted before; what was seen leaves by the tag `PROGRESS`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def process(self, element: Batch) -> Iterator[Any]:
        """Find the window of every row."""
        key = element.block.partition
        times = element.rows.column(columns.TIMESTAMP).to_numpy()
        positions = element.rows.column(columns.POSITION).to_numpy()
        windows = times // self._run.window_ms * self._run.window_ms
        fresh = np.flatnonzero(~self._counted(key, windows, positions))
        windows, positions = windows[fresh], positions[fresh]
        starts, first = np.unique(windows, return_inverse=True)
        lowest = np.full(len(starts), np.iinfo(np.int64).max)
        np.minimum.at(lowest, first, positions)
        seen = PartitionProgress(element.stop, element.dead, dict(zip(starts.tolist(), lowest.tolist(), strict=True)))
        yield beam.pvalue.TaggedOutput(PROGRESS, Progress(int(times.max(initial=-1)), {key: seen}))
        if len(fresh):
            yield Keyed(key, windows, _keyed(element.rows.take(pa.array(fresh))))

    def _counted(self, key: str, windows: Int64, positions: Int64) -> Any:
        starts, place = np.unique(windows, return_inverse=True)
        counted = self._run.committed.counted
        stops = np.array([counted.get(start, {}).get(key, 0) for start in starts.tolist()], np.int64)
        return positions < stops[place]


def _keyed(rows: pa.RecordBatch) -> pa.RecordBatch:
    events = rows.column(columns.EVENT_ID)
    present = [columns.FEATURES] if columns.FEATURES in rows.schema.names else []
    fields = {name: rows.column(name) for name in (*_KEYED, columns.POSITION, *present)}
    fields[columns.USER_KEY] = pa.array(hash_ids(rows.column(columns.USER_ID)))
    fields[columns.ITEM_KEY] = pa.array(hash_ids(rows.column(columns.ITEM_ID)))
    fields[columns.EVENT_KEY] = pa.array(hash_ids(events), mask=events.is_null().to_numpy(zero_copy_only=False))
    return pa.RecordBatch.from_pydict(fields)


class MergeProgress(beam.CombineFn):
    """Merges `Progress`."""

    def create_accumulator(self) -> Progress:
        """Begin with nothing seen."""
        return Progress()

    def add_input(self, accumulator: Progress, element: Progress) -> Progress:
        """Take in one part."""
        return accumulator.add([element])

    def merge_accumulators(self, accumulators: Any) -> Progress:
        """Take in all parts."""
        return Progress().add(accumulators)

    def extract_output(self, accumulator: Progress) -> Progress:
        """Return what was seen in all."""
        return accumulator


class Release(beam.DoFn):
    """`Keyed` to (shard, `Piece`), at the time of the piece's window; rows of windows still open stay in the log."""

    def __init__(self, run: Run, config: PipelineConfig) -> None:
        self._run = run
        self._shards = config.user_shards

    def process(self, element: Keyed, progress: Progress) -> Iterator[Any]:
        """Cut one batch."""
        closed = element.windows + self._run.window_ms <= self._run.watermark_ms(progress)
        users = element.rows.column(columns.USER_KEY).to_numpy()
        shards = (users.view(np.uint64) % self._shards).astype(np.int64)
        order = np.lexsort((shards, element.windows))
        order = order[closed[order]]
        windows, shards = element.windows[order], shards[order]
        for start, stop in runs_of(windows, shards):
            # take, not slice: a slice would carry its whole parent between workers.
            piece = Piece(element.partition, element.rows.take(pa.array(order[start:stop])))
            yield TimestampedValue((int(shards[start]), piece), int(windows[start]) / 1000)


def runs_of(*keys: Int64) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of every run of equal rows in sorted parallel columns."""
    if not len(keys[0]):
        return
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(keys[0])]
    yield from pairwise(edges)
