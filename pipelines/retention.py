"""Retention: which windows are old enough to retire, and the commit that retires them.

Commits retire from the first on, so that what is left has no gap. A commit goes when all its windows are old and
nobody needs one of its panes; the horizon then lies behind its newest window.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from weir.contracts import Commit, CommitLog, FileEntry, LogState, Retirement, Store, read_format
from weir.contracts.commits import Cursor
from weir.contracts.horizon import RETENTION
from weir.pipelines.bare_commits import append
from weir.pipelines.holds import Hold, holds
from weir.pipelines.key_owners import owners
from weir.pipelines.removal import GRACE_SECONDS, Removal
from weir.readers import generation

__all__ = ["Retention", "RetirementPlan", "plan_retirement", "retire"]

logger = logging.getLogger(__name__)


class _Step(NamedTuple):
    """A commit that may go, and the cursor after it."""

    commit: Commit
    after: Cursor


_PAUSE_SECONDS: Final = 600.0
"""How often a following pipeline looks for what may retire."""


@dataclass(frozen=True)
class RetirementPlan:
    """What goes, and what holds back the rest of what is old enough.

    `panes`, `files` and `size` (bytes) are those of the commits that go; `held` counts panes that are old enough and
    stay, because of `holds`. `retirement` is None where nothing goes.
    """

    retirement: Retirement | None
    commits: int
    panes: int
    files: int
    size: int
    held: int
    holds: tuple[Hold, ...]


def plan_retirement(
    store: Store, state: LogState, older_than_seconds: float, in_log: Set[str] | None
) -> RetirementPlan:
    """Return what may retire of the windows that end so many seconds of event time before the newest event.

    Parameters
    ----------
    in_log
        Names of the files that are in the log now (`Partition.key`); None where it cannot be listed: then no source
        partition is forgotten.

    Raises
    ------
    CorruptArtefactError
        If a commit is damaged or lost.
    """
    old = _old(store, state, older_than_seconds)
    needed = holds(store, state) if old else []
    limit = min((hold.sequence for hold in needed), default=0)
    going = _until(old, limit)
    held = sum(len(step.commit.panes) for step in old[len(going) :])
    files = [file for step in going for file in _files_of(step.commit)]
    return RetirementPlan(
        retirement=_retirement(state, going, in_log),
        commits=len(going),
        panes=sum(len(step.commit.panes) for step in going),
        files=len(files),
        size=sum(file.size for file in files),
        held=held,
        holds=tuple(hold for hold in needed if held and hold.sequence == limit),
    )


def retire(store: Store, state: LogState, plan: RetirementPlan) -> None:
    """Commit a retirement, and write the snapshot that holds its horizon; `state` follows.

    The files stay where they are (`weir.pipelines.removal`). Raises `CommitTakenError` where another writer was faster.
    """
    if plan.retirement is None:
        return
    # Owners of keys outlive their windows.
    owners(store, state.cursor.sequence - 1).save()
    log = CommitLog(store)
    append(log, state, RETENTION, retires=plan.retirement)
    state.save(log)


def _old(store: Store, state: LogState, older_than_seconds: float) -> list[_Step]:
    """Return the commits from the first on whose windows are all old enough."""
    found = read_format(store)
    if found is None or found.layout is None or state.max_event_ms < 0:
        return []
    window_ms = found.layout.window_ms
    cutoff = int(state.max_event_ms - 1000 * older_than_seconds) // window_ms * window_ms
    log, steps = CommitLog(store), list[_Step]()
    at = log.first()
    while at.number < state.cursor.number and (step := log.next(at)) is not None:
        commit, at = step
        if any(pane.start_ms >= cutoff for pane in commit.panes):
            break
        steps.append(_Step(commit, at))
    return steps


def _until(old: list[_Step], limit: int) -> list[_Step]:
    """Return the commits before the one with the first pane that is needed; none where no pane would go."""
    going = []
    for step in old:
        if step.after.sequence > limit:
            break
        going.append(step)
    return going if any(step.commit.panes for step in going) else []


def _retirement(state: LogState, going: list[_Step], in_log: Set[str] | None) -> Retirement | None:
    if not going:
        return None
    first = going[-1].after
    newest = max(pane.end_ms for step in going for pane in step.commit.panes)
    forgotten = _forgotten(state, first.number, in_log) if in_log is not None else []
    gone = {file.name for step in going for file in (*step.commit.letters, *step.commit.rewritten)}
    named = {name for key, span in state.sources.items() if key not in forgotten for name in span.letters}
    return Retirement(
        ms=max(newest, state.horizon.ms if state.horizon else newest),
        number=first.number,
        sequence=first.sequence,
        checksum=first.checksum,
        sources=tuple(forgotten),
        letters=tuple(sorted(gone & named)),
    )


def _forgotten(state: LogState, first: int, in_log: Set[str]) -> list[str]:
    """Return the partitions of files that are gone, and whose rows were all counted by commits that go.

    If such a file comes back, its rows lie before the horizon: they are refused, never counted again. The generations
    of a file are forgotten together, as their numbers follow from one another.
    """
    by_file = defaultdict[str, list[str]](list)
    for key in state.sources:
        by_file[key.rpartition("@")[0] if generation(key) > 1 else key].append(key)
    if in_log.isdisjoint(by_file):
        # Another log, or a disk that is not there.
        return []
    gone = (keys for name, keys in by_file.items() if name not in in_log and _is_past(state, keys, first))
    return sorted(key for keys in gone for key in keys)


def _is_past(state: LogState, keys: Iterable[str], first: int) -> bool:
    return all(state.sources[key].is_done and state.listed[key] < first for key in keys)


def _files_of(commit: Commit) -> list[FileEntry]:
    panes = (*commit.panes, *(one.pane for one in commit.redacts))
    return [*(file for pane in panes for file in pane.files), *commit.letters, *commit.rewritten]


@dataclass
class Retention:
    """Retires windows by age, now and then.

    What has retired is removed before anything more retires, so that what waits for its removal is bounded.
    """

    store: Store
    older_than_seconds: float
    grace_seconds: float = GRACE_SECONDS
    pause_seconds: float = _PAUSE_SECONDS
    _next: float = field(default=-math.inf, init=False)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._next

    def step(self, state: LogState, in_log: Set[str] | None) -> None:
        """Remove what has retired, else retire what may; `state` follows.

        Raises `CommitTakenError` where another writer was faster.
        """
        self._next = time.monotonic() + self.pause_seconds
        removal = Removal(self.store, state, self.grace_seconds)
        if removal.seconds_left():
            return
        removal.run()
        plan = plan_retirement(self.store, state, self.older_than_seconds, in_log)
        if plan.held:
            logger.warning("%d panes are older than the retention, but stay: %s", plan.held, _reasons(plan.holds))
        if plan.retirement is not None:
            retire(self.store, state, plan)
            logger.info("%d panes have retired: the log starts at %s", plan.panes, plan.retirement)


def _reasons(found: Iterable[Hold]) -> str:
    return "; ".join(f"{hold.reader}, from pane {hold.sequence} ({hold.why})" for hold in found)
