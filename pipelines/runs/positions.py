"""What a run starts from, what it has seen of the log, and how far the log is read after it.

Each run writes what it must wait with, and the run that closes a window reads its files. They only spare work: a
process that starts again reads from the `resume` positions of the commits, and removes what others have left.

A row at (partition, position) of window w is accounted for if, and only if, its position lies below the partition's
`resume` or below `counted` of w. See docs/store.md for why.

A run says only up to which commit: what it carries is copied to every transform, and must not grow with the age of the
store. Every process reads the panes from the commits, keeps them, and from run to run reads only what is new.
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
"""(n, 2): item keys, each with the check of an id that claims it (`weir.pipelines.runs.hash_collisions`)."""

Owners = dict[int, int]
"""Item key -> check of the id that owns it."""


@dataclass(frozen=True)
class LettersWritten:
    """A file of dead letters that waits for its commit; `last` is the highest position in it."""

    file: LetterFile
    last: int


@dataclass
class PartitionProgress:
    """What a run has seen of a partition: position after its last row, dead letters, lowest position by window.

    `skipped` counts messages without a value, those of earlier runs left out.
    """

    stop: int = 0
    dead: int = 0
    lowest: dict[int, int] = field(default_factory=dict)
    skipped: int = 0

    def add(self, other: "PartitionProgress") -> None:
        """Add what was seen of another part of the partition."""
        self.stop = max(self.stop, other.stop)
        self.dead += other.dead
        self.skipped += other.skipped
        for window, position in other.lowest.items():
            self.lowest[window] = min(position, self.lowest.get(window, position))


@dataclass
class Progress(CacheAware):
    """What a run has seen of the whole log; `max_event_ms` is the newest event, -1 where there was none.

    `claims` are those on keys that nobody owned before, batch by batch; of keys that several ids claim, `contested` has
    the owner once all claims are settled. `wanted` is the position up to which a partition was to be read, where
    reading may end before.
    """

    max_event_ms: int = -1
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    claims: list[Claims] = field(default_factory=list)
    contested: Owners = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def get_referents_for_cache(self) -> list[Any]:
        """Return nothing: Beam would measure each claim, for a cache that holds this one value."""
        return []

    @property
    def is_cut(self) -> bool:
        """Whether something that was to be read was not: the input is not complete."""
        return any(self.partitions[key].stop < stop for key, stop in self.wanted.items())

    def add(self, others: Iterable["Progress"]) -> "Progress":
        """Add what was seen elsewhere, and return this."""
        for other in others:
            self.max_event_ms = max(self.max_event_ms, other.max_event_ms)
            for key, seen in other.partitions.items():
                self.partitions.setdefault(key, PartitionProgress()).add(seen)
            self.claims += other.claims
            self.wanted |= other.wanted
        return self

    def settle(self) -> "Progress":
        """Find out who owns the contested keys, drop the claims, and return this: all of them must be here."""
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
    """A file of keyed rows of one partition and window.

    `lowest` is the lowest of their positions, `cost` what they take of `pipeline.run_bytes`. Claims on keys that nobody
    owned when the rows were kept are in a file beside theirs (`claims_in_hand`), if there are any: what a run carries
    is copied to every transform.
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
    """Write keyed rows of one partition and window as an Arrow file."""
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
    """Return the claims of a file of rows; a process reads them once. Raises `FileNotFoundError`."""
    return _claims(store, kept.name) if kept.has_claims else {}


@lru_cache(maxsize=4096)
def _claims(store: Store, name: str) -> Owners:
    return msgspec.json.decode(store.read(f"{name}{_CLAIMS}"), type=Owners)


def open_files_of(store: Store, users: UserKeys) -> list[str]:
    """Return the files of rows, of any process, that hold events of some users; one that goes meanwhile holds none."""
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
    that are recorded already, `secret` is the store's (`weir.contracts.base.keys`). With `flush` the input counts as
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


_NONE = Panes(count=0, commit=-1)

_lock = Lock()
_known: dict[str, LogState] = {}


def remember_panes(store: Store, state: LogState) -> None:
    """Keep the panes of a state that this process has opened for itself, so that they are not read again."""
    own = {"starts": [*state.starts], "panes": [*state.panes], "sources": {}, "counted": {}, "listed": {}}
    with _lock:
        _known.clear()
        _known[store.url] = state.model_copy(update=own)


def panes_before(store: Store, at: Cursor, start_ms: int) -> Panes:
    """Return the panes of a window in the commits before a cursor; without any there are 0, the last in commit -1.

    Raises what `CommitLog.next` raises.
    """
    with _lock:
        return _state_at(store, at).panes_of(start_ms) or _NONE


def redacted_before(store: Store, at: Cursor) -> dict[int, int]:
    """Return which panes have been redacted in the commits before a cursor (`LogState.redacted`); raises likewise."""
    with _lock:
        return _state_at(store, at).redacted


def _state_at(store: Store, at: Cursor) -> LogState:
    state = _known.get(store.url)
    if state is None or (state.cursor != at and state.cursor.number >= at.number):
        # Nothing is known, or too much: that of a later run, or of another store at this place.
        state = LogState.open(store, at.number)
    state.catch_up(CommitLog(store), at.number)
    _known.clear()
    _known[store.url] = state
    return state
