"""Positions: the commits a run starts from, what it has seen of the log, and how far each partition is read after it.

A row at (partition, position) of window w is accounted for if, and only if, its position is below the partition's
`resume` or below `counted` of w. See docs/store.md for why.

A run writes the rows of open windows to files, and the run that closes a window reads them. These files only save work:
a restarted process reads from the `resume` positions of the commits, and removes files of earlier processes.

A run is copied to every transform, so its size must not grow with the age of the store: it carries a cursor, and every
process reads the panes up to it from the commits and caches them.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.runners.worker.statecache import CacheAware

from weir.contracts import CommitLog, Horizon, Keys, LetterFile, LogState, SourceSpan, Store, UserKeys, WindowName
from weir.contracts.base import columns
from weir.contracts.commits.commit_log import Cursor
from weir.contracts.commits.log_state import Panes
from weir.readers import Int64, cost_of

__all__ = [
    "WHOLE_FILE",
    "Base",
    "Claims",
    "LettersWritten",
    "Listed",
    "OpenRows",
    "Owners",
    "PartitionProgress",
    "Progress",
    "Run",
    "claims_in_hand",
    "open_files_of",
    "panes_before",
    "read_open_rows",
    "redacted_before",
    "remember_panes",
    "write_open_rows",
]


Claims = Keys
"""(n, 2): item keys, each with the check of a claiming id (`weir.pipelines.runs.hash_collisions`)."""

Owners = dict[int, int]
"""Item key -> check of the id that owns it."""


@dataclass(frozen=True)
class LettersWritten:
    """An uncommitted file of dead letters; `last` is the highest position in it."""

    file: LetterFile
    last: int


@dataclass
class PartitionProgress:
    """What a run has seen of a partition: end position, dead letters, window start (ms) -> lowest position.

    `skipped` counts messages without a value that earlier runs have not counted.
    """

    stop: int = 0
    dead: int = 0
    lowest: dict[int, int] = field(default_factory=dict)
    skipped: int = 0

    def add(self, other: "PartitionProgress") -> None:
        """Add the progress of another part of the partition."""
        self.stop = max(self.stop, other.stop)
        self.dead += other.dead
        self.skipped += other.skipped
        for window, position in other.lowest.items():
            self.lowest[window] = min(position, self.lowest.get(window, position))


@dataclass
class Progress(CacheAware):
    """What a run has seen of the whole log; `max_event_ms` is the newest event time, -1 without events.

    `claims` are batches of claims on keys without an owner; `settle` turns them into `contested`, the owners of keys
    that several ids claim. `wanted` maps partitions to the planned end position, if reading may end early.
    """

    max_event_ms: int = -1
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    claims: list[Claims] = field(default_factory=list)
    contested: Owners = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def get_referents_for_cache(self) -> list[Any]:
        """Return an empty list, so that Beam does not measure each claim for its cache."""
        return []

    @property
    def is_cut(self) -> bool:
        """Whether reading ended early in some partition, so that the input is incomplete."""
        return any(self.partitions[key].stop < stop for key, stop in self.wanted.items())

    def add(self, others: Iterable["Progress"]) -> "Progress":
        """Add the progress of other parts, and return this."""
        for other in others:
            self.max_event_ms = max(self.max_event_ms, other.max_event_ms)
            for key, seen in other.partitions.items():
                self.partitions.setdefault(key, PartitionProgress()).add(seen)
            self.claims += other.claims
            self.wanted |= other.wanted
        return self

    def settle(self) -> "Progress":
        """Decide the owners of contested keys, drop the claims, and return this; needs the claims of the whole run."""
        keys, checks = np.concatenate([np.empty((0, 2), np.int64), *self.claims]).T
        order = np.lexsort((checks, keys))
        keys, checks = keys[order], checks[order]
        is_first = np.diff(keys, prepend=~keys[:1]) != 0
        lowest = checks[is_first][np.cumsum(is_first) - 1]
        lost = checks != lowest
        self.contested = dict(zip(keys[lost].tolist(), lowest[lost].tolist(), strict=True))
        self.claims = []
        return self


_CLAIMS: Final = ".claims"


@dataclass(frozen=True)
class OpenRows:
    """A file of keyed rows of one partition and one open window.

    `lowest` is their lowest position, `cost` their share of `pipeline.run_bytes`. Their claims are in a second file, if
    there are any (`claims_in_hand`), because a run is copied to every transform.
    """

    partition: str
    start_ms: int
    name: str
    lowest: int
    has_claims: bool = False
    cost: int = 0


def write_open_rows(
    store: Store, folder: str, partition: str, start_ms: int, rows: pa.RecordBatch, *, claims: Owners
) -> OpenRows:
    """Write keyed rows of one partition and window as an Arrow file, and their claims beside it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    name = f"{folder}/{start_ms}-{secrets.token_hex(8)}.arrow"
    store.write(name, sink.getvalue().to_pybytes())
    if claims:
        store.write(f"{name}{_CLAIMS}", msgspec.json.encode(claims))
    lowest = pc.min(rows.column(columns.POSITION)).as_py()
    return OpenRows(partition, start_ms, name, lowest, bool(claims), cost_of(rows.num_rows, rows.nbytes))


def claims_in_hand(store: Store, kept: OpenRows) -> Owners:
    """Return the claims of a file of pending rows, cached by the process. Raises `FileNotFoundError`."""
    return _claims(store, kept.name) if kept.has_claims else {}


@lru_cache(maxsize=4096)
def _claims(store: Store, name: str) -> Owners:
    return msgspec.json.decode(store.read(f"{name}{_CLAIMS}"), type=Owners)


def open_files_of(store: Store, users: UserKeys) -> list[str]:
    """Return the files of pending rows, of any process, with events of some users."""
    found = []
    for name in store.glob("state/runs/*/*.arrow"):
        try:
            rows = pa.ipc.open_file(pa.BufferReader(store.read(name))).read_all()
        except FileNotFoundError:
            continue
        if np.isin(rows[columns.USER_KEY].to_numpy(), users).any():
            found.append(name)
    return found


def read_open_rows(store: Store, kept: OpenRows) -> pa.RecordBatch:
    """Return the rows of a file; raises `FileNotFoundError` or `pa.ArrowInvalid`."""
    return pa.ipc.open_file(pa.BufferReader(store.read(kept.name))).get_batch(0)


END_OF_TIME: Final = 1 << 62

WHOLE_FILE: Final = -1
"""The position of a dead letter about a whole file."""

_NOTHING: Final = SourceSpan(start=0, stop=0, resume=0, size=0)


class Listed(Protocol):
    """A listed partition: a file (`weir.readers.Partition`), or another source with ascending positions."""

    @property
    def key(self) -> str:
        """Its name in commits."""

    @property
    def size(self) -> int:
        """Its end, in the unit of its positions or in bytes."""

    @property
    def recorded_size(self) -> int:
        """The size that a commit records once everything listed was read."""

    @property
    def arrival_ms(self) -> int | None:
        """Its last change (wall clock), None if unknown."""

    @property
    def fingerprint(self) -> str:
        """Identifies its first rows; empty if the key does."""


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
        """Return the state for the given partitions."""
        return cls(
            state.cursor,
            {key: state.sources[key] for key in partitions if key in state.sources},
            {key: state.counted[key] for key in partitions if key in state.counted},
            state.max_event_ms,
            state.horizon,
            state.redaction,
        )

    def is_counted(self, key: str, windows: Int64, positions: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which rows, given by window start (n,) and position (n,), are accounted for; shape (n,)."""
        starts, place = np.unique(windows, return_inverse=True)
        counted = self.counted.get(key, {})
        resume = self.sources[key].resume if key in self.sources else 0
        stops = np.array([max(resume, counted.get(start, 0)) for start in starts.tolist()], np.int64)
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = positions < stops[place]
        return found

    def is_inherited(self, key: str, times: Int64, positions: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which rows, by event time (n,) and position (n,), came with another store's windows; (n,)."""
        found = np.zeros(len(positions), np.bool_)
        for one in self.sources[key].inherited if key in self.sources else ():
            starts, place = np.unique(times // one.window_ms * one.window_ms, return_inverse=True)
            stops = np.array([one.counted.get(start, 0) for start in starts.tolist()], np.int64)
            found |= positions < stops[place]
        return found


@dataclass(frozen=True)
class Run:
    """One pipeline run: the commits before it, what it reads, and when it closes windows.

    `id` names its files and its commit. `pending` are the spans that this process has read since the last commit,
    `open_rows` the files of rows whose windows were open then, `refused` the positions of recorded dead letters,
    `secret` the store's key secret (`weir.contracts.base.keys`). With `flush` the run commits every window, unless
    reading ends early; else a window stays open until the newest event is `lateness_ms` past its end.
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
        """The folder of the run's temporary files, relative to the store."""
        return f"state/runs/{self.id}"

    def stays_refused(self, key: str) -> Int64:
        """Return the positions of refused rows; an unfinished last line, at or after `stop`, is read again."""
        stop = self.base.sources[key].stop if key in self.base.sources else 0
        known = self.refused.get(key, np.empty(0, np.int64))
        return known[known < stop]

    def name(self, start_ms: int, panes: Panes) -> WindowName:
        """Return the name of the next pane of a window that has these panes."""
        return WindowName(start_ms, start_ms + self.window_ms, panes.count)

    def watermark_ms(self, progress: Progress) -> int:
        """Return the event time (ms) up to which the input counts as complete."""
        if self.flush and not progress.is_cut:
            return END_OF_TIME
        return max(self.newest_ms, self.base.max_event_ms, progress.max_event_ms) - self.lateness_ms

    def is_closed(self, start_ms: int, progress: Progress) -> bool:
        """Return whether this run commits the window that starts at `start_ms`."""
        return start_ms + self.window_ms <= self.watermark_ms(progress)

    def spans(self, progress: Progress, letters: Mapping[str, list[LettersWritten]]) -> dict[str, SourceSpan]:
        """Return the new span of each partition with progress, pending spans, letters or open rows."""
        concerned = {*progress.partitions, *self.pending, *letters, *(rows.partition for rows in self.open_rows)}
        return {key: self._span(key, progress, letters.get(key, [])) for key in sorted(concerned)}

    def _span(self, key: str, progress: Progress, letters: list[LettersWritten]) -> SourceSpan:
        before = self.pending.get(key) or self.base.sources.get(key, _NOTHING)
        read = progress.partitions.get(key)
        stop = max(read.stop if read else 0, before.stop)
        if read and read.stop < progress.wanted.get(key, 0):
            # Reading ended early: an earlier process may have read further, but its rows are not available.
            stop = max(read.stop, before.resume)
        still_open = (at for window, at in self._lowest(key, read) if not self.is_closed(window, progress))
        resume = min(still_open, default=stop)
        # Drop a letter about the whole file once the file could be read.
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
        """Return (window start, lowest position) of earlier open rows and of rows read now."""
        kept = [(rows.start_ms, rows.lowest) for rows in self.open_rows if rows.partition == key]
        return kept + list(read.lowest.items() if read else ())


_NONE = Panes(count=0, commit=-1)

_lock = Lock()
_known: dict[str, LogState] = {}


def remember_panes(store: Store, state: LogState) -> None:
    """Cache the panes of a state that this process has opened, so that they are not read again."""
    own = {"starts": [*state.starts], "panes": [*state.panes], "sources": {}, "counted": {}, "listed": {}}
    with _lock:
        _known.clear()
        _known[store.url] = state.model_copy(update=own)


def panes_before(store: Store, at: Cursor, start_ms: int) -> Panes:
    """Return the panes of a window in the commits before a cursor; count 0 and commit -1 if it has none.

    Raises the errors of `CommitLog.next`.
    """
    with _lock:
        return _state_at(store, at).panes_of(start_ms) or _NONE


def redacted_before(store: Store, at: Cursor) -> dict[int, int]:
    """Return the panes redacted before a cursor (`LogState.redacted`); raises the errors of `CommitLog.next`."""
    with _lock:
        return _state_at(store, at).redacted


def _state_at(store: Store, at: Cursor) -> LogState:
    state = _known.get(store.url)
    if state is None or (state.cursor != at and state.cursor.number >= at.number):
        # The cached state is missing, newer than `at`, or of another store at this URL.
        state = LogState.open(store, at.number)
    state.catch_up(CommitLog(store), at.number)
    _known.clear()
    _known[store.url] = state
    return state
