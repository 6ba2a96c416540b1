"""What a run starts from, and how far the log is read after it: all of it follows from the commits.

A row at (partition, position) of window w is accounted for if, and only if, its position lies below the partition's
`resume` or below `counted` of w. See docs/store.md for why.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from weir.contracts import Horizon, LogState, SourceSpan, WindowName
from weir.contracts.commits import Cursor
from weir.contracts.log_state import Panes
from weir.pipelines.open_rows import OpenRows
from weir.pipelines.progress import LettersWritten, PartitionProgress, Progress
from weir.readers import Int64

__all__ = ["WHOLE_FILE", "Base", "Listed", "Run"]

END_OF_TIME: Final = 1 << 62

WHOLE_FILE: Final = -1
"""The position of a dead letter that concerns a file as a whole."""

_NOTHING: Final = SourceSpan(start=0, stop=0, resume=0, size=0)


class Listed(Protocol):
    """A partition as it was listed: a file (`weir.readers.Partition`), or what else has positions that ascend."""

    @property
    def key(self) -> str:
        """What commits call it."""

    @property
    def size(self) -> int:
        """Where it ends, in the unit of its positions or in bytes."""

    @property
    def recorded_size(self) -> int:
        """The size that a commit records once it was read as far as is listed."""

    @property
    def arrival_ms(self) -> int | None:
        """When it last changed (wall clock), None where nobody knows."""

    @property
    def fingerprint(self) -> str:
        """What identifies its first rows; empty where its key does."""


@dataclass(frozen=True)
class Base:
    """The commits as the transforms of a run need them."""

    cursor: Cursor = field(default_factory=Cursor)
    sources: Mapping[str, SourceSpan] = field(default_factory=dict)
    counted: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Partition -> window start in ms -> position below which all rows of the window are accounted for."""
    max_event_ms: int = -1
    horizon: Horizon | None = None
    redaction: int = -1

    @classmethod
    def of(cls, state: LogState, partitions: Collection[str]) -> "Base":
        """Return the state, as far as the given partitions are concerned."""
        return cls(
            state.cursor,
            {key: state.sources[key] for key in partitions if key in state.sources},
            {key: state.counted[key] for key in partitions if key in state.counted},
            state.max_event_ms,
            state.horizon,
            state.redaction,
        )

    def is_counted(self, key: str, windows: Int64, positions: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Say of rows, by their window (n,) and position (n,), whether they are accounted for; shape (n,)."""
        starts, place = np.unique(windows, return_inverse=True)
        counted = self.counted.get(key, {})
        resume = self.sources[key].resume if key in self.sources else 0
        stops = np.array([max(resume, counted.get(start, 0)) for start in starts.tolist()], np.int64)
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = positions < stops[place]
        return found

    def is_inherited(self, key: str, times: Int64, positions: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Say of rows, by their event time (n,) and position (n,), whether another store's windows held them; (n,)."""
        found = np.zeros(len(positions), np.bool_)
        for one in self.sources[key].inherited if key in self.sources else ():
            starts, place = np.unique(times // one.window_ms * one.window_ms, return_inverse=True)
            stops = np.array([one.counted.get(start, 0) for start in starts.tolist()], np.int64)
            found |= positions < stops[place]
        return found


@dataclass(frozen=True)
class Run:
    """One pipeline run: what is committed before it, what it reads, and which windows it closes.

    `id` names its files and its commit. `pending` are the spans of partitions that this process has read since the
    last commit, `open_rows` the rows of windows that were still open then, `refused` the positions of dead letters
    that are recorded already, `secret` is the store's (`weir.contracts.keys`). With `flush` the input counts as
    complete, unless its reading was cut short, and every window is committed; else a window stays open until the newest
    event is `lateness_ms` past its end.
    """

    id: str
    base: Base
    partitions: Mapping[str, Listed]
    window_ms: int
    lateness_ms: int
    flush: bool
    secret: str = ""
    newest_ms: int = -1
    pending: Mapping[str, SourceSpan] = field(default_factory=dict)
    open_rows: tuple[OpenRows, ...] = ()
    refused: Mapping[str, Int64] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where the run keeps what is of no use once its windows are committed, relative to the store."""
        return f"state/runs/{self.id}"

    def stays_refused(self, key: str) -> Int64:
        """Return the positions of rows that are not read again; an unfinished last line, which lies behind, is."""
        stop = self.base.sources[key].stop if key in self.base.sources else 0
        known = self.refused.get(key, np.empty(0, np.int64))
        return known[known < stop]

    def name(self, start_ms: int, panes: Panes) -> WindowName:
        """Return the name of the pane that the run makes of a window that has these."""
        return WindowName(start_ms, start_ms + self.window_ms, panes.count)

    def watermark_ms(self, progress: Progress) -> int:
        """Return the event time up to which the input counts as complete."""
        if self.flush and not progress.is_cut:
            return END_OF_TIME
        return max(self.newest_ms, self.base.max_event_ms, progress.max_event_ms) - self.lateness_ms

    def is_closed(self, start_ms: int, progress: Progress) -> bool:
        """Say whether a window is committed by this run."""
        return start_ms + self.window_ms <= self.watermark_ms(progress)

    def spans(self, progress: Progress, letters: Mapping[str, list[LettersWritten]]) -> dict[str, SourceSpan]:
        """Return how far each partition is read that was read since the last commit, or has letters or open rows."""
        concerned = {*progress.partitions, *self.pending, *letters, *(rows.partition for rows in self.open_rows)}
        return {key: self._span(key, progress, letters.get(key, [])) for key in sorted(concerned)}

    def _span(self, key: str, progress: Progress, letters: list[LettersWritten]) -> SourceSpan:
        before = self.pending.get(key) or self.base.sources.get(key, _NOTHING)
        read = progress.partitions.get(key)
        stop = max(read.stop if read else 0, before.stop)
        if read and read.stop < progress.wanted.get(key, 0):
            # Cut short: what lies behind may have been read by an earlier process, but its rows are not at hand.
            stop = max(read.stop, before.resume)
        still_open = (at for window, at in self._lowest(key, read) if not self.is_closed(window, progress))
        resume = min(still_open, default=stop)
        # A letter about the whole file ends when the file is read.
        known = {name: last for name, last in before.letters.items() if not (read and last == END_OF_TIME)}
        found = known | {one.file.name: one.last for one in letters}
        file = self.partitions.get(key)
        checksums = before.letter_checksums | {one.file.name: one.file.checksum for one in letters}
        reaching = {name: last for name, last in found.items() if last >= resume}
        return SourceSpan(
            start=self.base.sources[key].resume if key in self.base.sources else 0,
            stop=stop,
            resume=resume,
            size=file.recorded_size if file else before.size,
            modified_ms=file.arrival_ms if file else before.modified_ms,
            fingerprint=file.fingerprint if file else before.fingerprint,
            dead=before.dead + sum(one.file.rows for one in letters),
            letters=reaching,
            letter_checksums={name: checksums[name] for name in reaching if name in checksums},
            inherited=tuple(one for one in before.inherited if max(one.counted.values()) > resume),
            first=before.first,
            skipped=before.skipped + (read.skipped if read else 0),
        )

    def _lowest(self, key: str, read: PartitionProgress | None) -> list[tuple[int, int]]:
        """Return (window, lowest position) of rows that were open before, and of those read now."""
        kept = [(rows.start_ms, rows.lowest) for rows in self.open_rows if rows.partition == key]
        return kept + list(read.lowest.items() if read else ())
