"""Cleanup of retired and replaced files, after a grace period for their readers.

`Removal` deletes what has retired: of a void commit, whose panes and letters have all retired, the files and then the
commit itself; of other commits the files of retired panes. `Erasure` deletes files that redactions replaced, then
commits that their names are dropped; it also deletes half-written files (drafts) of killed processes, which may hold
erased users. The commit log alone decides what to remove, so the next cleanup completes a killed one.
"""

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from weir.contracts import (
    Commit,
    CommitLog,
    CommitTakenError,
    CorruptArtefactError,
    LocalCache,
    LogState,
    RetiredError,
    Store,
    WindowManifest,
)
from weir.contracts.bundles.variants import MAIN, lines
from weir.contracts.commits.commit import HISTORIES, requirements
from weir.contracts.commits.retention_horizon import snapshot_name, snapshots
from weir.pipelines.runs.run_registry import new_run, remove_drafts

__all__ = ["GRACE_SECONDS", "Erasure", "Removal"]

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 3600.0
"""How long retired files stay; longer than any run or reader of a window takes."""

_PAUSE_SECONDS: Final = 600.0
"""Seconds between two erasure checks of a following pipeline."""


@dataclass(frozen=True)
class Removal:
    """Removes the files of panes and commits before the retention horizon of a log state."""

    store: Store
    state: LogState
    grace_seconds: float = GRACE_SECONDS
    _log: CommitLog = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_log", CommitLog(self.store))

    def waiting(self) -> list[int]:
        """Return the numbers of the void commits whose documents still exist, oldest first."""
        if self.state.horizon is None:
            return []
        names = self.store.glob("commits/" + "[0-9]" * 10 + ".json")
        return [number for name in names if (number := int(name[8:18])) < self.state.horizon.number]

    def waiting_panes(self) -> list[WindowManifest]:
        """Return the retired panes of remaining commits whose window folders still exist."""
        if self.state.horizon is None:
            return []
        retired = self._log.get(self.state.retirement).retires
        commits = (self._log.get(number) for number in (retired.commits if retired else ()))
        gone = [pane for commit in commits for pane in commit.panes if self._has_retired(pane)]
        return [pane for pane in gone if self.store.exists(f"windows/{pane.name.slice}")]

    @property
    def is_waiting(self) -> bool:
        """Whether retired files still exist."""
        return bool(self.waiting() or self.waiting_panes())

    def _has_retired(self, pane: WindowManifest) -> bool:
        horizon = self.state.horizon
        return horizon is not None and horizon.has_retired(pane.sequence, pane.start_ms)

    def seconds_left(self) -> float:
        """Return the seconds until the files of the newest retirement may be removed, 0 once they may."""
        if self.state.horizon is None:
            return 0.0
        retired_at = self._log.get(self.state.retirement).committed_at
        return max(0.0, retired_at + self.grace_seconds - time.time())

    def run(self) -> int:
        """Remove retired files if their grace period is over; return the number of removed commits."""
        if self.state.horizon is None or self.seconds_left():
            return 0
        # The retiring run may have been killed before its snapshot, or a writer may have overwritten HEAD.
        self.state.save(self._log)
        self._record_horizon()
        numbers, panes = self.waiting(), self.waiting_panes()
        if numbers or panes:
            self._remove_redacted()
        for pane in panes:
            self._remove_pane(pane)
        removed = [number for number in numbers if self._remove(number)]
        for number in snapshots(self.store):
            if number < self.state.retirement:
                self.store.remove(snapshot_name(number))
        if removed:
            logger.info("removed what %d retired commits have left, up to commit %d", len(removed), removed[-1])
        return len(removed)

    def _remove(self, number: int) -> bool:
        """Remove the files of a void commit, then its document; return False for a damaged commit, which stays."""
        try:
            commit = self._log.get(number)
        except (CorruptArtefactError, RetiredError) as error:
            logger.warning("what it lists is not removed: %s", error)
            return False
        self._remove_panes(commit)
        for letter in (*commit.letters, *commit.rewritten):
            self.store.remove(letter.name)
            if letter.partition not in self.state.sources:
                self.store.remove_if_empty(letter.name.rpartition("/")[0])
        self.store.remove(CommitLog.name(number))
        return True

    def _remove_redacted(self) -> None:
        """Remove the replacements that redactions after the horizon wrote for retired panes."""
        horizon, number = self.state.horizon, self.state.redaction
        while horizon is not None and number >= horizon.number:
            commit = self._log.get(number)
            for pane in (redacted.pane for redacted in commit.redacts if self._has_retired(redacted.pane)):
                self.store.remove(pane.folder)
                self.store.remove_if_empty(f"windows/{pane.name.slice}")
            number = commit.redaction

    def _remove_panes(self, commit: Commit) -> None:
        """Remove the files of all panes that a commit lists or redacts."""
        for redacted in commit.redacts:
            self.store.remove(redacted.pane.folder)
            self.store.remove_if_empty(f"windows/{redacted.pane.name.slice}")
        for pane in commit.panes:
            self._remove_pane(pane)

    def _remove_pane(self, pane: WindowManifest) -> None:
        """Remove the files of a pane; its window folder goes last, as it marks the removal as incomplete."""
        for results in ("monitor", *self._evaluations):
            self.store.remove(f"{results}/{pane.name}.json")
            self.store.remove_if_empty(f"{results}/{pane.name.slice}")
        self.store.remove(pane.folder)
        self.store.remove_if_empty(f"windows/{pane.name.slice}")

    def _record_horizon(self) -> None:
        """Record the horizon in HEAD, so that readers see it before any file is removed."""
        head, horizon = self._log.head(), self.state.horizon
        if head is None or horizon is None or (head.horizon is not None and head.horizon.ms >= horizon.ms):
            return
        self._log.point(head.model_copy(update={"horizon": horizon, "base": self.state.snapshot, "snapshot": None}))

    @cached_property
    def _evaluations(self) -> list[str]:
        """The folders of evaluations, one for each variant."""
        return ["evaluations" if line == MAIN else f"variants/{line}/evaluations" for line in lines(self.store)]


@dataclass
class Erasure:
    """Removes the files that redactions replaced over `grace_seconds` ago, and their copies in local `caches`."""

    store: Store
    grace_seconds: float
    caches: Iterable[LocalCache] = ()
    _next: float = field(default=-math.inf, init=False)

    def step(self, state: LogState) -> None:
        """Run the erasure, at most every `_PAUSE_SECONDS`; adds its commit to `state`."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE_SECONDS
            self.run(state)

    def waiting(self, state: LogState) -> dict[str, float]:
        """Return name -> time of replacement (wall clock, s) of the files and folders to erase.

        Besides the files that redactions replaced, these are all user files replaced before the newest redaction.
        """
        users = state.histories.replaced.items()
        return state.erasing | {name: since for name, since in users if since <= state.redacted_at}

    def seconds_left(self, state: LogState) -> float:
        """Return the seconds until all files to erase are past the grace period."""
        newest = max(self.waiting(state).values(), default=-math.inf)
        return max(0.0, newest + self.grace_seconds - time.time())

    def run(self, state: LogState) -> int:
        """Remove the files past the grace period and commit their removal; return the number of files and folders."""
        log = CommitLog(self.store)
        while due := self._due(state):
            remove_drafts(self.store)
            for name in due:
                self.store.remove(name)
                self.store.remove_if_empty(name.rpartition("/")[0])
            for cache in self.caches if self.store.local_path is None else ():
                cache.discard(due)
            try:
                log.append(_dropping(state, due))
            except CommitTakenError:
                state.catch_up(log)
                continue
            state.catch_up(log)
            logger.info("removed %d files and folders that held forgotten users", len(due))
            return len(due)
        return 0

    def _due(self, state: LogState) -> list[str]:
        """Return the names of the files and folders past the grace period."""
        before = time.time() - self.grace_seconds
        return sorted(name for name, since in self.waiting(state).items() if since <= before)


def _dropping(state: LogState, names: list[str]) -> Commit:
    """Return a commit after `state` that records the removal of files."""
    return Commit(
        number=state.cursor.number,
        writer=new_run(),
        predecessor=state.cursor.checksum,
        committed_at=time.time(),
        sequence=state.cursor.sequence,
        dropped=tuple(names),
        redaction=state.redaction,
        requires=requirements(HISTORIES, redaction=state.redaction),
    )
