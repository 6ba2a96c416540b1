"""Slices: the rows of a batch by window, and how far partitions are read once a window is committed.

docs/store.md, "Under an engine", shows why each row counts once whatever other writers commit meanwhile.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue

from weir.contracts import SourceSpan, Store, read_format
from weir.contracts.base import columns
from weir.pipelines.runs.progress import LettersWritten
from weir.pipelines.stream.reader import Batch
from weir.pipelines.transforms.read import large
from weir.pipelines.transforms.split import keyed, runs_of
from weir.readers import DeadLetter, Int64

__all__ = ["Coverage", "MissingRowsError", "OutOfOrderError", "Scatter", "Slice", "Tile", "slices_of", "with_letters"]


@dataclass(frozen=True)
class Tile:
    """Positions [start, stop) of a partition that a batch has read completely, with the end of the partition, `size`.

    `open` announces the batch's rows of later windows: window start (ms) -> lowest and highest position. `letters` are
    the batch's dead letters, `skipped` the positions of messages without a value (n,).
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
    """Keyed rows of a batch that come with one window: rows of this window, and late rows of earlier ones.

    `job` and `stop` are copied from the batch. The slice in the window of the partition's watermark carries the `tile`,
    and exists even without a row.
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
    """Turns a `Batch` into `Slice`s, timestamped by their windows.

    A row behind the watermark of its partition comes with the watermark's window, so the engine never drops it as late.
    """

    def __init__(self, store: Store, window_ms: int) -> None:
        self._store = store
        self._window_ms = window_ms

    def setup(self) -> None:
        """Read the key secret of the store."""
        found = read_format(self._store)
        self._secret = found.key_secret if found else ""

    def process(self, element: Batch) -> Iterator[Any]:
        """Cut one batch into slices."""
        for start_ms, rows in slices_of(element, self._window_ms, self._secret):
            yield TimestampedValue(rows, max(start_ms, element.watermark_ms) / 1000)


def slices_of(batch: Batch, window_ms: int, secret: str) -> Iterator[tuple[int, Slice]]:
    """Yield (window start in ms, slice) of a batch, in order of time; rows get keys by the store's key `secret`.

    Rows of windows before the watermark are in the slice of the window that the batch's watermark lies in.
    """
    home = batch.watermark_ms // window_ms * window_ms
    times = batch.rows.column(columns.TIMESTAMP).to_numpy()
    windows = np.maximum(times // window_ms * window_ms, home)
    order = np.argsort(windows, kind="stable")
    runs = {int(windows[order[start]]): order[start:stop] for start, stop in runs_of(windows[order])}
    rows, positions = keyed(batch.rows, secret), batch.rows.column(columns.POSITION).to_numpy()
    waiting = {start_ms: _ends(positions[places]) for start_ms, places in runs.items() if start_ms > home}
    tile = Tile(batch.start, batch.stop, batch.size, waiting, batch.letters, batch.skipped)
    for start_ms, places in ({home: np.empty(0, np.int64)} | runs).items():
        # take, not slice: a pickled slice carries its whole parent.
        part = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
        yield start_ms, Slice(batch.partition, batch.job, batch.stop, part, tile if start_ms == home else None)


def _ends(positions: Int64) -> tuple[int, int]:
    """Return the lowest and the highest position."""
    return int(positions.min()), int(positions.max())


class OutOfOrderError(Exception):
    """The engine delivered a window before another that must be committed first; it must deliver both again."""


class MissingRowsError(Exception):
    """The engine lost or dropped rows: only a new job from the committed offsets delivers them."""


@dataclass(frozen=True)
class Coverage:
    """What the slices of one window cover of a partition.

    `tiles` are in order; `reach` is the highest `stop` of the slices: the engine has delivered all rows of this and
    earlier windows below `reach`. `came` (n,) are the positions of the rows in the slices.
    """

    partition: str
    job: str
    tiles: tuple[Tile, ...]
    reach: int
    came: Int64

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> dict[str, "Coverage"]:
        """Return the coverage by partition; raises `OutOfOrderError` for a hole between two tiles."""
        grouped = defaultdict[str, list[Slice]](list)
        for part in slices:
            grouped[part.partition].append(part)
        return {key: cls._of(key, several) for key, several in grouped.items()}

    @classmethod
    def _of(cls, key: str, slices: list[Slice]) -> "Coverage":
        tiles = sorted((part.tile for part in slices if part.tile), key=lambda tile: (tile.start, tile.stop))
        for before, tile in pairwise(tiles):
            if tile.start != before.stop:
                raise OutOfOrderError(f"{key}: positions [{tile.start}, {tile.stop}) came after {before.stop}")
        positions = [part.rows.column(columns.POSITION).to_numpy() for part in slices]
        return cls(key, slices[0].job, tuple(tiles), max(part.stop for part in slices), np.concatenate(positions))

    def after(
        self, before: SourceSpan, counted: Mapping[int, int], start_ms: int, panes: Collection[int]
    ) -> SourceSpan:
        """Return the span of the partition after the window that starts at `start_ms`.

        `before` and `counted` (window start in ms -> position) are from the commits, `panes` the starts (ms) of the
        windows that get a pane. Raises `OutOfOrderError` or `MissingRowsError`.
        """
        if self.reach <= before.resume:
            # Everything is accounted for: a job that is behind must not change the span.
            return before.model_copy(update={"start": before.resume, "counted": self._bounds(panes, before.stop)})
        reached = self._reached(before)
        stop = max(before.stop, reached)
        waiting = _Waiting.of(before, counted)
        waiting.close(self, start_ms)
        waiting.announce(self.tiles)
        return before.model_copy(
            update={
                "start": before.resume,
                "stop": stop,
                "resume": waiting.lowest(stop),
                "job": self.job,
                "reached": reached,
                "size": max([before.size, *(tile.size for tile in self.tiles)]),
                "skipped": before.skipped + sum(int((tile.skipped >= before.stop).sum()) for tile in self.tiles),
                "counted": self._bounds(panes, stop),
                "open": {at: dict(sorted(batches.items())) for at, batches in sorted(waiting.open.items()) if batches},
                "unlisted": waiting.unlisted if waiting.unlisted < before.stop else None,
            }
        )

    def _bounds(self, panes: Collection[int], stop: int) -> dict[int, int]:
        """Return window start (ms) -> position below which all its rows are counted, for windows with a pane."""
        return dict.fromkeys(panes, self.reach) if self.reach < stop else {}

    def _reached(self, before: SourceSpan) -> int:
        """Return the position up to which the job has read; raises `OutOfOrderError` for a gap before it."""
        is_next = self.job == before.job
        # Another job must start at `resume`, since it does not have the earlier job's waiting rows.
        end = before.reached if is_next else before.resume
        first = self.tiles[0].start if self.tiles else end
        reached = max([before.reached if is_next else 0, *(tile.stop for tile in self.tiles)])
        if first > end or self.reach > reached:
            raise OutOfOrderError(
                f"{self.partition}: positions {first} to {self.reach} came, {end} is next; another job or run has "
                "committed meanwhile, or a window before is missing"
            )
        return reached


@dataclass
class _Waiting:
    """The rows of a partition that wait for their windows, in the form of `SourceSpan.open`; complete below `unlisted`.

    `resume`, `stop` and `counted` are from the commits before the window.
    """

    resume: int
    stop: int
    counted: Mapping[int, int]
    open: dict[int, dict[int, int]]
    unlisted: int

    @classmethod
    def of(cls, span: SourceSpan, counted: Mapping[int, int]) -> "_Waiting":
        """Return the waiting rows that a span records."""
        opened = {at: dict(batches) for at, batches in span.open.items()}
        return cls(span.resume, span.stop, counted, opened, span.listed)

    def close(self, seen: Coverage, start_ms: int) -> None:
        """Remove the rows of windows up to `start_ms` below `seen.reach`; raises `MissingRowsError`."""
        came = set(seen.came.tolist())
        for at in [at for at in self.open if at <= start_ms]:
            waiting = {last: first for last, first in self.open[at].items() if last >= self.counted.get(at, 0)}
            missing = [last for last in waiting if last < seen.reach and last not in came]
            if missing:
                raise MissingRowsError(f"{seen.partition}: the row at {min(missing)} did not come with its window")
            # Rows at or above `reach`, read by another job, are still to come.
            self.open[at] = {last: max(first, seen.reach) for last, first in waiting.items() if last >= seen.reach}

    def announce(self, tiles: tuple[Tile, ...]) -> None:
        """Add the rows of later windows that the tiles announce."""
        for tile in tiles:
            for at, (first, last) in tile.open.items():
                least = max(self.resume, self.counted.get(at, 0))
                if last >= least:
                    batches = self.open.setdefault(at, {})
                    batches[last] = min(max(first, least), batches.get(last, last))
        if tiles and tiles[0].start <= self.unlisted:
            self.unlisted = max(self.unlisted, tiles[-1].stop)

    def lowest(self, stop: int) -> int:
        """Return the lowest position of a row that may wait for its window, `stop` if no row waits."""
        firsts = (first for batches in self.open.values() for first in batches.values())
        return min([stop, *firsts, *([self.unlisted] if self.unlisted < self.stop else [])])


def with_letters(span: SourceSpan, new: Iterable[LettersWritten]) -> SourceSpan:
    """Return a span with the files of dead letters of its commit added, and files wholly below `resume` left out."""
    new = list(new)
    last = span.letters | {letters.file.name: letters.last for letters in new}
    sums = span.letter_checksums | {letters.file.name: letters.file.checksum for letters in new}
    reaching = {name: position for name, position in last.items() if position >= span.resume}
    return span.model_copy(
        update={
            "dead": span.dead + sum(letters.file.rows or 0 for letters in new),
            "letters": reaching,
            "letter_checksums": {name: sums[name] for name in reaching if name in sums},
            "inherited": tuple(windows for windows in span.inherited if max(windows.counted.values()) > span.resume),
        }
    )
