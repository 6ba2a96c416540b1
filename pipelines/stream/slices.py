"""Slices: the rows of a batch by the window in which the engine brings them to the committer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue

from weir.contracts import Store, columns, read_format
from weir.pipelines.element_coder import large
from weir.pipelines.stream.batch import Batch
from weir.pipelines.transforms.split import keyed, runs_of
from weir.readers import DeadLetter, Int64

__all__ = ["Scatter", "Slice", "Tile", "slices_of"]


@dataclass(frozen=True)
class Tile:
    """Positions [start, stop) of a partition, which have been read whole.

    `open` says of which later windows rows are among them: window start (ms) -> lowest and highest position.
    """

    start: int
    stop: int
    size: int
    open: dict[int, tuple[int, int]]
    letters: tuple[DeadLetter, ...]
    skipped: Int64


@large
@dataclass(frozen=True)
class Slice:
    """Keyed rows of a batch, of the window in which it comes and, where they are late, of earlier ones.

    `job` and `stop` are those of the batch. The slice in the window of the partition's watermark carries the `tile`;
    it comes even without a row.
    """

    partition: str
    job: str
    stop: int
    rows: pa.RecordBatch
    tile: Tile | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.rows.nbytes)


class Scatter(beam.DoFn):
    """`Batch` to `Slice`s, each at the time of its window.

    A row behind the watermark of its partition comes with the watermark's window: for the engine no row is late, and
    it drops none.
    """

    def __init__(self, store: Store, window_ms: int) -> None:
        self._store = store
        self._window_ms = window_ms

    def setup(self) -> None:
        """Read the secret of the store's keys."""
        found = read_format(self._store)
        self._secret = found.key_secret if found else ""

    def process(self, element: Batch) -> Iterator[Any]:
        """Cut one batch."""
        for start_ms, one in slices_of(element, self._window_ms, self._secret):
            yield TimestampedValue(one, max(start_ms, element.watermark_ms) / 1000)


def slices_of(batch: Batch, window_ms: int, secret: str) -> Iterator[tuple[int, Slice]]:
    """Yield window starts (ms) and the slices that come with them, in order of time."""
    home = batch.watermark_ms // window_ms * window_ms
    times = batch.rows.column(columns.TIMESTAMP).to_numpy()
    windows = np.maximum(times // window_ms * window_ms, home)
    order = np.argsort(windows, kind="stable")
    runs = {int(windows[order[start]]): order[start:stop] for start, stop in runs_of(windows[order])}
    rows, positions = keyed(batch.rows, secret), batch.rows.column(columns.POSITION).to_numpy()
    waiting = {start_ms: _ends(positions[places]) for start_ms, places in runs.items() if start_ms > home}
    tile = Tile(batch.start, batch.stop, batch.size, waiting, batch.letters, batch.skipped)
    for start_ms, places in ({home: np.empty(0, np.int64)} | runs).items():
        # take, not slice: a slice would carry its whole parent between workers.
        found = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
        yield start_ms, Slice(batch.partition, batch.job, batch.stop, found, tile if start_ms == home else None)


def _ends(positions: Int64) -> tuple[int, int]:
    return int(positions.min()), int(positions.max())
