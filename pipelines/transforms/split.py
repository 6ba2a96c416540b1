"""Split: cut batches of interactions into slices, each of one event-time window and one user shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import Horizon, Store, UserKeys, hash_ids, shards_of
from weir.contracts.base import columns
from weir.pipelines.config import PipelineConfig
from weir.pipelines.runs.hash_collisions import COLLISION, KeyOwners, claimed, letters_of, new_claims, of_others, owners
from weir.pipelines.runs.progress import (
    Owners,
    PartitionProgress,
    PendingRows,
    Progress,
    claims_in_hand,
    read_open_rows,
    write_open_rows,
)
from weir.pipelines.runs.run import Run
from weir.pipelines.transforms.read import DEAD, PROGRESS, large
from weir.readers import Fault, Int64, Reason, ValidatedBlock

__all__ = [
    "OPEN",
    "AssignWindows",
    "EmitClosed",
    "Keyed",
    "MergeProgress",
    "ReloadPending",
    "ShardSlice",
    "before_retention",
    "by_shard",
    "keyed",
    "runs_of",
    "without",
]

OPEN: Final = "open"
"""The tag of rows that wait for their window to close (`PendingRows`)."""

_COPIED: Final = (columns.ITEM_ID, columns.TIMESTAMP, columns.LABEL, columns.WEIGHT, columns.ATTRIBUTION_TOKEN)


@large
@dataclass(frozen=True)
class Keyed:
    """Interactions of a partition that no commit has counted, with keys; `windows` (n,) are the window starts in ms."""

    partition: str
    windows: Int64
    rows: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


@large
@dataclass(frozen=True)
class ShardSlice:
    """The rows of a `Keyed` that are in the window that starts at `start_ms` and in one user shard."""

    partition: str
    start_ms: int
    rows: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


class AssignWindows(beam.DoFn):
    """Turns a `ValidatedBlock` into a `Keyed` of the rows not counted or refused yet; progress is tagged `PROGRESS`."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def process(self, element: ValidatedBlock) -> Iterator[Any]:
        """Yield the new rows of one block with their windows and keys, and the progress."""
        key = element.block.partition
        times = element.rows.column(columns.TIMESTAMP).to_numpy()
        positions = element.rows.column(columns.POSITION).to_numpy()
        windows = times // self._run.window_ms * self._run.window_ms
        base = self._run.base
        counted = base.is_counted(key, windows, positions) | base.is_inherited(key, times, positions)
        # A refused row stays refused, even if it is valid under new settings.
        refused = np.isin(positions, self._run.stays_refused(key))
        fresh = np.flatnonzero(~(counted | refused))
        windows, positions = windows[fresh], positions[fresh]
        starts, first = np.unique(windows, return_inverse=True)
        lowest = np.full(len(starts), np.iinfo(np.int64).max)
        np.minimum.at(lowest, first, positions)
        seen = PartitionProgress(element.stop, element.dead, dict(zip(starts.tolist(), lowest.tolist(), strict=True)))
        progress = Progress(int(times.max(initial=-1)), {key: seen})
        if len(fresh):
            rows = keyed(element.rows.take(pa.array(fresh)), self._run.secret)
            known = owners(self._store, base.cursor.sequence - 1)
            progress.claims.append(new_claims(rows, known))
            yield Keyed(key, windows, rows)
        yield beam.pvalue.TaggedOutput(PROGRESS, progress)


def keyed(rows: pa.RecordBatch, secret: str) -> pa.RecordBatch:
    """Replace the user and event ids of valid interactions by keys, and add item keys to the item ids.

    `rows` has the columns of `INTERACTION_SCHEMA`; rows that have keys already are returned unchanged.
    """
    if columns.USER_KEY in rows.schema.names:
        # Rows of another store's windows (`batch.rebuild`) have the keys of this store already.
        return rows
    events = rows.column(columns.EVENT_ID)
    present = [name for name in (columns.FEATURES, columns.USER_FEATURES) if name in rows.schema.names]
    fields = {name: rows.column(name) for name in (*_COPIED, columns.POSITION, *present)}
    fields[columns.USER_KEY] = pa.array(hash_ids(rows.column(columns.USER_ID), secret))
    fields[columns.ITEM_KEY] = pa.array(hash_ids(rows.column(columns.ITEM_ID), secret))
    fields[columns.EVENT_KEY] = pa.array(hash_ids(events, secret), mask=events.is_null().to_numpy(zero_copy_only=False))
    return pa.RecordBatch.from_pydict(fields)


class MergeProgress(beam.CombineFn):
    """Combines the `Progress` of all blocks into the settled progress of the run."""

    def create_accumulator(self) -> Progress:
        """Return empty progress."""
        return Progress()

    def add_input(self, accumulator: Progress, element: Progress) -> Progress:
        """Add the progress of one block."""
        return accumulator.add([element])

    def merge_accumulators(self, accumulators: Any) -> Progress:
        """Merge the progress of several workers."""
        return Progress().add(accumulators)

    def extract_output(self, accumulator: Progress) -> Progress:
        """Settle the claims and return the total."""
        return accumulator.settle()


class ReloadPending(beam.DoFn):
    """Turns `PendingRows` of earlier runs into a `Keyed` if this run closes their window; else yields nothing."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run

    def process(self, element: PendingRows, progress: Progress) -> Iterator[Keyed]:
        """Read one file of pending rows, if its window closes."""
        if self._run.is_closed(element.start_ms, progress):
            rows = read_open_rows(self._store, element)
            yield Keyed(element.partition, np.full(rows.num_rows, element.start_ms), rows)


class EmitClosed(beam.DoFn):
    """Turns a `Keyed` into (shard, `ShardSlice`) pairs of the rows whose windows this run closes.

    The rows of open windows are written to files, tagged `OPEN`. Rows before the retention horizon, and rows whose item
    key belongs to another id, become dead letters, tagged `DEAD`.
    """

    def __init__(self, store: Store, run: Run, config: PipelineConfig) -> None:
        self._store = store
        self._run = run
        self._shards = config.user_shards

    def process(self, element: Keyed, progress: Progress) -> Iterator[Any]:
        """Yield the slices, files of open windows and dead letters of one batch."""
        if (horizon := self._run.base.horizon) is not None:
            element, letters = without(element, element.windows < horizon.ms, before_retention(horizon))
            yield from letters
        key_owners = owners(self._store, self._run.base.cursor.sequence - 1)
        wrong = of_others(element.rows, key_owners, self._claims(progress))
        element, letters = without(element, wrong, COLLISION)
        yield from letters
        closed = self._run.is_closed(element.windows, progress)
        yield from self._kept_open(element, np.flatnonzero(~closed), key_owners)
        yield from by_shard(element, np.flatnonzero(closed), self._shards)

    def _claims(self, progress: Progress) -> Owners:
        """Return key -> check of the winning claims: claims of pending rows win over claims of this run."""
        claims = dict(progress.contested)
        for rows in reversed(self._run.open_rows):
            claims |= claims_in_hand(self._store, rows)
        return claims

    def _kept_open(self, element: Keyed, rows: Int64, key_owners: KeyOwners) -> Iterator[Any]:
        """Write the rows at the given indices (n,) as a file per window; yield the files, tagged `OPEN`."""
        order = rows[np.argsort(element.windows[rows], kind="stable")]
        for start, stop in runs_of(element.windows[order]):
            batch = element.rows.take(pa.array(order[start:stop]))
            window, claims = int(element.windows[order[start]]), claimed(batch, key_owners)
            file = write_open_rows(self._store, self._run.folder, element.partition, window, batch, claims=claims)
            yield beam.pvalue.TaggedOutput(OPEN, file)


def by_shard(element: Keyed, rows: Int64, shards: int) -> Iterator[tuple[int, ShardSlice]]:
    """Yield (user shard, its rows of one window) for the rows at the indices (n,), ordered by window and shard."""
    windows = element.windows[rows]
    of_row = shards_of(UserKeys(element.rows.column(columns.USER_KEY).to_numpy()[rows]), shards)
    order = np.lexsort((of_row, windows))
    windows, of_row, rows = windows[order], of_row[order], rows[order]
    for start, stop in runs_of(windows, of_row):
        # take, not slice: a pickled slice carries its whole parent.
        batch = element.rows.take(pa.array(rows[start:stop]))
        yield int(of_row[start]), ShardSlice(element.partition, int(windows[start]), batch)


def before_retention(horizon: Horizon) -> Fault:
    """Return the fault of an event whose window has retired."""
    allowed = f"windows before {horizon} have retired (pipeline.retention_days, weir retire)"
    return Fault(Reason.BEFORE_RETENTION, f"the event is too old: {allowed}")


def without(element: Keyed, wrong: npt.NDArray[np.bool_], fault: Fault) -> tuple[Keyed, list[Any]]:
    """Return the rows not marked `wrong` (n,), and dead letters of the wrong rows, tagged `DEAD`."""
    if not wrong.any():
        return element, []
    refused = element.rows.take(pa.array(np.flatnonzero(wrong)))
    kept = np.flatnonzero(~wrong)
    rest = Keyed(element.partition, element.windows[kept], element.rows.take(pa.array(kept)))
    return rest, [beam.pvalue.TaggedOutput(DEAD, letters_of(element.partition, refused, fault))]


def runs_of(*keys: Int64) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of each run of rows with equal values in parallel columns (n,), which are sorted."""
    if not len(keys[0]):
        return
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(keys[0])]
    yield from pairwise(edges)
