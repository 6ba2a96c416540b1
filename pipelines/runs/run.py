"""A run: the commits it starts from, its watermark, and how far the next run reads each partition again.

A row at (partition, position) of window w is accounted for if, and only if, its position is below the partition's
`resume` or below `counted` of w. See docs/store.md for why.

A run is copied to every transform, so its size must not grow with the age of the store: it carries a cursor, and every
process reads the panes up to the cursor from the commits and caches them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol, overload

import numpy as np

from weir.contracts import CommitLog, Horizon, LogState, SourceSpan, Store, WindowName
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.log_state import Panes
from weir.pipelines.runs.progress import LettersWritten, PartitionProgress, PendingRows, Progress
from weir.readers import Int64
from weir.readers.blocks import Bool

__all__ = ["END_OF_TIME", "Base", "Listed", "Run", "panes_before", "redacted_before", "remember_panes"]

END_OF_TIME: Final = 1 << 62
"""Above every event time (ms) and position: the watermark of a run that closes all windows, or an unknown end."""

_NO_SPAN: Final = SourceSpan(start=0, stop=0, resume=0, size=0)
_NO_PANES: Final = Panes(count=0, commit=-1)


class Listed(Protocol):
    """A partition as the listing of its source shows it: a file (`weir.readers.Partition`), a partition of a topic."""

    @property
    def key(self) -> str:
        """The partition's name in commits."""

    @property
    def size(self) -> int:
        """The partition's end, in the unit of its positions or in bytes."""

    @property
    def recorded_size(self) -> int:
        """The size that a commit records once the partition is read to its end."""

    @property
    def arrival_ms(self) -> int | None:
        """The partition's last change (wall clock, ms), None if unknown."""

    @property
    def fingerprint(self) -> str:
        """A checksum of the first rows, or another identity of the content; empty if the key identifies the content."""


@dataclass(frozen=True)
class Base:
    """The state of the commits before a run, limited to what the transforms need."""

    cursor: Cursor = field(default_factory=Cursor)
    sources: Mapping[str, SourceSpan] = field(default_factory=dict)
    counted: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Partition -> window start in ms -> position below which all rows of the window are accounted for."""
    max_event_ms: int = -1
    horizon: Horizon | None = None
    redaction: int = -1

    @classmethod
    def of(cls, state: LogState, partitions: Collection[str]) -> "Base":
        """Return the part of a log state that concerns the given partitions."""
        return cls(
            state.cursor,
            {key: state.sources[key] for key in partitions if key in state.sources},
            {key: state.counted[key] for key in partitions if key in state.counted},
            state.max_event_ms,
            state.horizon,
            state.redaction,
        )

    def is_counted(self, key: str, windows: Int64, positions: Int64) -> Bool:
        """Mark the rows of partition `key`, given by window start (n,) and position (n,), that are accounted for."""
        starts, place = np.unique(windows, return_inverse=True)
        counted = self.counted.get(key, {})
        resume = self.sources[key].resume if key in self.sources else 0
        stops = np.array([max(resume, counted.get(start, 0)) for start in starts.tolist()], np.int64)
        is_below: Bool = positions < stops[place]
        return is_below

    def is_inherited(self, key: str, times: Int64, positions: Int64) -> Bool:
        """Mark the rows of partition `key`, by event time (n,) and position (n,), that another store's windows hold."""
        is_below = np.zeros(len(positions), np.bool_)
        for inherited in self.sources[key].inherited if key in self.sources else ():
            starts, place = np.unique(times // inherited.window_ms * inherited.window_ms, return_inverse=True)
            stops = np.array([inherited.counted.get(start, 0) for start in starts.tolist()], np.int64)
            is_below |= positions < stops[place]
        return is_below


@dataclass(frozen=True)
class Run:
    """One pipeline run: the commits before it, what it reads, and when it closes windows.

    `id` names the run's files and commit. By partition key, `pending` holds the spans that this process has read since
    the last commit, `refused` the positions of dead letters that commits record. `open_rows` are the files of earlier
    runs' rows whose windows are still open, `newest_ms` is the newest event time of earlier runs, `secret` the store's
    key secret (`weir.contracts.base.keys`). With `flush` the run commits every window, unless reading ends early; else
    a window stays open until the newest event is `lateness_ms` past the window's end.
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
    open_rows: tuple[PendingRows, ...] = ()
    refused: Mapping[str, Int64] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The folder of the run's temporary files, relative to the store."""
        return f"state/runs/{self.id}"

    def stays_refused(self, key: str) -> Int64:
        """Return the positions of partition `key` whose rows stay refused: recorded dead letters below the read end.

        A dead letter at or after the read end is an unfinished last line, which is read again.
        """
        stop = self.base.sources[key].stop if key in self.base.sources else 0
        refused = self.refused.get(key, np.empty(0, np.int64))
        return refused[refused < stop]

    def name(self, start_ms: int, panes: Panes) -> WindowName:
        """Return the name of the next pane of the window that starts at `start_ms` and has `panes` already."""
        return WindowName(start_ms, start_ms + self.window_ms, panes.count)

    def watermark_ms(self, progress: Progress) -> int:
        """Return the event time (ms) up to which the input counts as complete."""
        if self.flush and not progress.is_cut:
            return END_OF_TIME
        return max(self.newest_ms, self.base.max_event_ms, progress.max_event_ms) - self.lateness_ms

    @overload
    def is_closed(self, start_ms: int, progress: Progress) -> bool: ...

    @overload
    def is_closed(self, start_ms: Int64, progress: Progress) -> Bool: ...

    def is_closed(self, start_ms: int | Int64, progress: Progress) -> bool | Bool:
        """Return whether this run commits the window that starts at `start_ms`; a mask for several starts (n,)."""
        return start_ms + self.window_ms <= self.watermark_ms(progress)

    def spans(self, progress: Progress, letters: Mapping[str, list[LettersWritten]]) -> dict[str, SourceSpan]:
        """Return partition key -> span to commit, for partitions with progress, pending spans, letters or open rows."""
        concerned = {*progress.partitions, *self.pending, *letters, *(rows.partition for rows in self.open_rows)}
        return {key: self._span(key, progress, letters.get(key, [])) for key in sorted(concerned)}

    def _span(self, key: str, progress: Progress, letters: list[LettersWritten]) -> SourceSpan:
        before = self.pending.get(key) or self.base.sources.get(key, _NO_SPAN)
        read = progress.partitions.get(key)
        stop = max(read.stop if read else 0, before.stop)
        if read and read.stop < progress.wanted.get(key, 0):
            # Reading ended early: an earlier process may have read further, but its rows are not available.
            stop = max(read.stop, before.resume)
        still_open = (at for window, at in self._lowest(key, read) if not self.is_closed(window, progress))
        resume = min(still_open, default=stop)
        # Drop a letter about the whole file once the file could be read.
        earlier = {name: last for name, last in before.letters.items() if not (read and last == END_OF_TIME)}
        last_of = earlier | {letter.file.name: letter.last for letter in letters}
        file = self.partitions.get(key)
        checksums = before.letter_checksums | {letter.file.name: letter.file.checksum for letter in letters}
        reaching = {name: last for name, last in last_of.items() if last >= resume}
        return SourceSpan(
            start=self.base.sources[key].resume if key in self.base.sources else 0,
            stop=stop,
            resume=resume,
            size=file.recorded_size if file else before.size,
            modified_ms=file.arrival_ms if file else before.modified_ms,
            fingerprint=file.fingerprint if file else before.fingerprint,
            dead=before.dead + sum(letter.file.rows for letter in letters),
            letters=reaching,
            letter_checksums={name: checksums[name] for name in reaching if name in checksums},
            inherited=tuple(windows for windows in before.inherited if max(windows.counted.values()) > resume),
            first=before.first,
            skipped=before.skipped + (read.skipped if read else 0),
        )

    def _lowest(self, key: str, read: PartitionProgress | None) -> list[tuple[int, int]]:
        """Return (window start, lowest position) of a partition's pending rows and of its rows read in this run."""
        pending = [(rows.start_ms, rows.lowest) for rows in self.open_rows if rows.partition == key]
        return pending + list(read.lowest.items() if read else ())


_lock = Lock()
_states: dict[str, LogState] = {}
"""Store URL -> the cached state of the one store that this process works on."""


def remember_panes(store: Store, state: LogState) -> None:
    """Cache the panes of `state` in this process, so that `panes_before` need not read them from the store."""
    own = {"starts": [*state.starts], "panes": [*state.panes], "sources": {}, "counted": {}, "listed": {}}
    with _lock:
        _states.clear()
        _states[store.url] = state.model_copy(update=own)


def panes_before(store: Store, at: Cursor, start_ms: int) -> Panes:
    """Return the panes that a window has before cursor `at`: their count and newest commit, or count 0 and commit -1.

    Raises the errors of `CommitLog.next`.
    """
    with _lock:
        return _state_at(store, at).panes_of(start_ms) or _NO_PANES


def redacted_before(store: Store, at: Cursor) -> dict[int, int]:
    """Return the redacted panes (`LogState.redacted`) as of cursor `at`; raises the errors of `CommitLog.next`."""
    with _lock:
        return _state_at(store, at).redacted


def _state_at(store: Store, at: Cursor) -> LogState:
    """Return the log state at a cursor, from the cache if possible; the caller holds `_lock`."""
    state = _states.get(store.url)
    if state is None or (state.cursor != at and state.cursor.number >= at.number):
        # The cached state is missing, newer than `at`, or of another store at this URL.
        state = LogState.open(store, at.number)
    state.catch_up(CommitLog(store), at.number)
    _states.clear()
    _states[store.url] = state
    return state
