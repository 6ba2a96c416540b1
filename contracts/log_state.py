"""The state that the commits add up to: how far each partition is read, which windows have panes, and the totals.

The state follows from the commits alone. Snapshots of it, ``commits/snapshot-<n>.json``, only spare a starting
pipeline the reading of all commits: it opens the newest one and takes in what came after.
"""

import logging
from bisect import bisect_left
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from contracts.commits import Commit, CommitLog, Cursor, Head, SourceSpan
from contracts.documents import Document, read_document, write_document
from contracts.errors import CorruptArtefactError
from contracts.format import SketchParameters
from contracts.history_files import HistoryFiles
from contracts.storage import Store
from contracts.window import WindowCounts

__all__ = ["LogState", "Panes"]

logger = logging.getLogger(__name__)

_EVERY: Final = 64
"""Commits between two snapshots."""


class Panes(Document):
    """The panes of a window: how many, and the number of the commit with the last (`WindowManifest.previous`)."""

    count: int
    commit: int


class LogState(BaseModel):
    """The sum of the commits up to a cursor.

    A row at position x of partition p and of window w is accounted for if, and only if, x lies below
    ``sources[p].resume`` or below ``counted[p][w]``. See docs/windows.md for why.
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
    snapshot: int | None = Field(default=None, description="the commit of the newest snapshot")

    @property
    def number(self) -> int:
        """The newest commit added, -1 before the first."""
        return self.cursor.number - 1

    def panes_of(self, start_ms: int) -> Panes | None:
        """Return the committed panes of a window, None before the first."""
        place = bisect_left(self.starts, start_ms)
        found = place < len(self.starts) and self.starts[place] == start_ms
        return self.panes[place] if found else None

    def take_in(self, commit: Commit, cursor: Cursor) -> None:
        """Add the next commit; `cursor` points past it."""
        self.histories = self.histories.after(commit)
        self.cursor = cursor
        for pane in commit.panes:
            self._add_pane(pane.start_ms, commit.number)
            self.counts += pane.counts
            self.max_event_ms = max(self.max_event_ms, pane.max_event_ms)
            self.committed_at, self.sketch = pane.committed_at, pane.sketch
        for key, span in commit.sources.items():
            before = self.sources.get(key)
            self.dead += span.dead - (before.dead if before else 0)
            self.sources[key] = span
            counted = self.counted.get(key, {}) | {pane.start_ms: span.stop for pane in commit.panes}
            self.counted[key] = {start: stop for start, stop in counted.items() if stop > span.resume}

    def _add_pane(self, start_ms: int, commit: int) -> None:
        place = bisect_left(self.starts, start_ms)
        if place == len(self.starts) or self.starts[place] != start_ms:
            self.starts.insert(place, start_ms)
            self.panes.insert(place, Panes(count=1, commit=commit))
        else:
            self.panes[place] = Panes(count=self.panes[place].count + 1, commit=commit)

    @classmethod
    def open(cls, store: Store, stop: int | None = None) -> "LogState":
        """Return the state as of the newest commit, or before commit `stop`: a snapshot, and the commits after it.

        Raises what `CommitLog.next` raises.
        """
        log = CommitLog(store)
        head = log.head()
        if head is None:
            # Without the hint only a listing shows a gap.
            log.newest()
        snapshot = None if head is None else head.snapshot
        too_late = snapshot is not None and stop is not None and snapshot >= stop
        state = cls() if snapshot is None or too_late else cls._snapshot(store, snapshot)
        state.catch_up(log, stop)
        return state

    def catch_up(self, log: CommitLog, stop: int | None = None) -> list[Commit]:
        """Add, and return, the commits made since, those before `stop`; raises what `CommitLog.next` raises."""
        found: list[Commit] = []
        while (stop is None or self.cursor.number < stop) and (step := log.next(self.cursor)) is not None:
            self.take_in(*step)
            found.append(step[0])
        return found

    @classmethod
    def _snapshot(cls, store: Store, number: int) -> "LogState":
        try:
            kept = read_document(store, _name(number), _Snapshot)
        except (FileNotFoundError, CorruptArtefactError) as error:
            logger.warning("%s is not used, all commits are read instead: %s", store.path(_name(number)), error)
            return cls()
        return kept.state

    def save(self, log: CommitLog) -> bool:
        """Write a snapshot if enough commits have come since the last; say whether one was written."""
        if self.number - (-1 if self.snapshot is None else self.snapshot) < _EVERY:
            return False
        self.snapshot = self.number
        write_document(log.store, _name(self.number), _Snapshot(number=self.number, state=self))
        log.point(Head(number=self.number, sequence=self.cursor.sequence, snapshot=self.number))
        return True


class _Snapshot(Document):
    number: int
    state: LogState


def _name(number: int) -> str:
    return f"commits/snapshot-{number:010d}.json"
