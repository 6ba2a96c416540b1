"""The state that the commits add up to: positions of partitions, windows with panes, totals, histories and retention.

The state follows from the commits alone. Snapshots, ``commits/snapshot-<n>.json``, only save a starting pipeline from
reading all commits: it opens the newest snapshot and adds the commits after it.
"""

import logging
from bisect import bisect_left
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.commits.commit import Commit, HistoryFiles, SourceSpan
from weir.contracts.commits.commit_log import CommitLog, Cursor, Head
from weir.contracts.commits.retention_horizon import Horizon, Retirement, snapshot_name, snapshots
from weir.contracts.commits.window import WindowCounts
from weir.contracts.storage.documents import Document, read_document, write_document
from weir.contracts.storage.format import SketchParameters
from weir.contracts.storage.store import Store

__all__ = ["LogState", "Panes"]

logger = logging.getLogger(__name__)

_EVERY: Final = 64
"""Commits between two snapshots."""


class Panes(Document):
    """Number of panes of a window, and the commit of the last one (`WindowManifest.previous`)."""

    count: int
    commit: int


class LogState(BaseModel):
    """The sum of the commits up to a cursor.

    A row at position x of partition p and window w is accounted for if and only if x lies below ``sources[p].resume``
    or below ``counted[p][w]``; docs/store.md explains why.
    """

    model_config = ConfigDict(extra="ignore")

    cursor: Cursor = Cursor()
    max_event_ms: int = -1
    committed_at: float = Field(default=0.0, description="of the newest pane, wall clock, seconds since 1970")
    counts: WindowCounts = WindowCounts()
    dead: int = 0
    sources: dict[str, SourceSpan] = Field(default_factory=dict)
    counted: dict[str, dict[int, int]] = Field(
        default_factory=dict, description="partition -> window start (ms) -> stop"
    )
    starts: list[int] = Field(default_factory=list, description="window starts (ms), ascending")
    panes: list[Panes] = Field(default_factory=list, description="beside `starts`")
    sketch: SketchParameters | None = None
    histories: HistoryFiles = HistoryFiles()
    moved_to: str = Field(default="", description="the store in which the log goes on")
    moved_from: str = Field(default="", description="the store from which the log came")
    listed: dict[str, int] = Field(default_factory=dict, description="partition -> the last commit that lists it")
    horizon: Horizon | None = Field(default=None, description="what is before it has retired")
    retirement: int = Field(default=-1, description="the commit that set the horizon")
    redaction: int = Field(default=-1, description="the newest commit that forgets users, -1: none")
    redacted_at: float = Field(default=0.0, description="when it was made, wall clock, seconds since 1970")
    redacted: dict[int, int] = Field(
        default_factory=dict, description="sequence of a redacted pane -> the commit with its files"
    )
    erasing: dict[str, float] = Field(
        default_factory=dict,
        description="folders and files that a redaction has replaced -> when (wall clock, seconds)",
    )
    snapshot: int | None = Field(default=None, description="the commit of the newest snapshot")

    @property
    def number(self) -> int:
        """The newest commit added, -1 before the first."""
        return self.cursor.number - 1

    def panes_of(self, start_ms: int) -> Panes | None:
        """Return the committed panes of the window that starts at `start_ms`, None without panes."""
        place = bisect_left(self.starts, start_ms)
        found = place < len(self.starts) and self.starts[place] == start_ms
        return self.panes[place] if found else None

    def take_in(self, commit: Commit, cursor: Cursor) -> None:
        """Add the next commit; `cursor` points past it."""
        self.histories = self.histories.after(commit)
        self.cursor = cursor
        self.moved_to, self.moved_from = commit.moved_to or self.moved_to, commit.moved_from or self.moved_from
        for pane in commit.panes:
            self._add_pane(pane.start_ms, commit.number)
            self.counts += pane.counts
            self.max_event_ms = max(self.max_event_ms, pane.max_event_ms)
            self.committed_at, self.sketch = pane.committed_at, pane.sketch
        for key, span in commit.sources.items():
            before = self.sources.get(key)
            self.dead += span.dead - (before.dead if before else 0)
            self.sources[key], self.listed[key] = span, commit.number
            counted = self.counted.get(key, {})
            bounds = {at: max(counted.get(at, 0), span.bound(at)) for at in (pane.start_ms for pane in commit.panes)}
            self.counted[key] = {start: stop for start, stop in (counted | bounds).items() if stop > span.resume}
        if commit.dropped:
            self.erasing = {name: since for name, since in self.erasing.items() if name not in commit.dropped}
        if commit.forgets:
            self._redact(commit)
        if commit.retires is not None:
            self._retire(commit.retires)
            self.retirement = commit.number

    def _redact(self, commit: Commit) -> None:
        self.redaction, self.redacted_at = commit.number, commit.committed_at
        self.redacted = self.redacted | {one.pane.sequence: commit.number for one in commit.redacts}
        self.erasing = self.erasing | dict.fromkeys(commit.replaced_by_redaction, commit.committed_at)
        new = {file.replaces: file for file in commit.rewritten}
        for key, span in self.sources.items():
            if not new.keys().isdisjoint(span.letters):
                self.sources[key] = span.with_letters(new)

    def _retire(self, retired: Retirement) -> None:
        self.horizon = Horizon.model_validate(retired.model_dump(include=set(Horizon.model_fields)))
        place = bisect_left(self.starts, retired.ms)
        del self.starts[:place], self.panes[:place]
        self.redacted = {at: commit for at, commit in self.redacted.items() if at >= retired.sequence}
        for key in retired.sources:
            for known in (self.sources, self.counted, self.listed):
                known.pop(key, None)
        gone = set(retired.letters)
        for key, span in self.sources.items():
            if not gone.isdisjoint(span.letters):
                self.sources[key] = span.without_letters(gone)

    def _add_pane(self, start_ms: int, commit: int) -> None:
        place = bisect_left(self.starts, start_ms)
        if place == len(self.starts) or self.starts[place] != start_ms:
            self.starts.insert(place, start_ms)
            self.panes.insert(place, Panes(count=1, commit=commit))
        else:
            self.panes[place] = Panes(count=self.panes[place].count + 1, commit=commit)

    @classmethod
    def open(cls, store: Store, stop: int | None = None) -> "LogState":
        """Return the state as of the newest commit, or before commit `stop`, from a snapshot and the commits after it.

        Raises as `CommitLog.next`.
        """
        log = CommitLog(store)
        head = log.head()
        if head is None:
            # Without HEAD only a listing shows a gap.
            log.newest()
        state = cls._kept(store, log, head, stop)
        state.catch_up(log, stop)
        return state

    def catch_up(self, log: CommitLog, stop: int | None = None) -> list[Commit]:
        """Add the commits from the cursor on, up to but not including `stop`, and return them.

        Raises as `CommitLog.next`.
        """
        found: list[Commit] = []
        while (stop is None or self.cursor.number < stop) and (step := log.next(self.cursor)) is not None:
            self.take_in(*step)
            found.append(step[0])
        return found

    @classmethod
    def _kept(cls, store: Store, log: CommitLog, head: Head | None, stop: int | None) -> "LogState":
        """Return the newest usable snapshot before commit `stop`; an empty state if the log still has commit 0."""
        named = None if head is None else head.newest_snapshot
        end = stop if stop is not None else 1 << 62
        if named is not None and named < end and (state := cls._snapshot(store, named)) is not None:
            return state
        if log.first().number:
            # The commits before the snapshot are gone: use an older one.
            for number in (one for one in snapshots(store) if one < end and one != named):
                if (state := cls._snapshot(store, number)) is not None:
                    return state
        return cls()

    @classmethod
    def _snapshot(cls, store: Store, number: int) -> "LogState | None":
        try:
            return read_document(store, snapshot_name(number), _Snapshot).state
        except (FileNotFoundError, CorruptArtefactError) as error:
            logger.warning("%s is not used, commits are read instead: %s", store.path(snapshot_name(number)), error)
            return None

    def save(self, log: CommitLog) -> bool:
        """Write a snapshot if it is due after enough commits or a retirement; return whether it was written."""
        known = -1 if self.snapshot is None else self.snapshot
        if self.number - known < _EVERY and known >= self.retirement:
            return False
        self.snapshot = self.number
        write_document(log.store, snapshot_name(self.number), _Snapshot(number=self.number, state=self))
        named = {"snapshot": self.number} if self.horizon is None else {"base": self.number}
        log.point(Head(number=self.number, sequence=self.cursor.sequence, horizon=self.horizon, **named))
        return True


class _Snapshot(Document):
    number: int
    state: LogState
