"""Retention: find windows that are old enough to retire and that no reader needs, and commit their retirement.

Windows retire whole, the oldest first: all panes of a window together, once it is old enough and no reader needs one of
them. Commits without a remaining file retire from the first on, so that the log has no gap; a commit with a younger
window stays, and still lists its retired panes.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from weir.contracts import (
    Commit,
    CommitLog,
    CorruptArtefactError,
    FileEntry,
    LogState,
    Retirement,
    Store,
    WindowLog,
    WindowManifest,
    read_format,
)
from weir.contracts.base.statistics import GATE_CASES
from weir.contracts.bundles.checkpoint import checkpoint_names, read_checkpoint_mark
from weir.contracts.bundles.variants import line_of, lines
from weir.contracts.commits.commit_log import Cursor, LogMismatchError
from weir.contracts.commits.log_state import Panes
from weir.contracts.commits.retention_horizon import GATE_WINDOWS, RETENTION, WINDOWS, MonitorPlace
from weir.pipelines.maintenance.cleanup import GRACE_SECONDS, Removal
from weir.pipelines.runs.hash_collisions import owners
from weir.pipelines.runs.run_registry import append
from weir.readers import generation

__all__ = ["Hold", "Retention", "RetirementPlan", "histories_from", "holds", "plan_retirement", "retire"]

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 600.0
"""Seconds between two retention steps of a following pipeline."""


class Hold(NamedTuple):
    """A reader that needs the panes from `sequence` on; `why` is the explanation for people."""

    reader: str
    sequence: int
    why: str


def holds(store: Store, state: LogState) -> list[Hold]:
    """Return a hold for each reader of windows that has left its position in the store.

    A damaged position, or one of another commit log, holds all windows.
    """
    needed = histories_from(state)
    constraints = [
        Hold("histories", needed, "their events are not in the histories of users yet: start `weir ingest` once")
    ]
    try:
        constraints += _trainer(store)
    except (CorruptArtefactError, LogMismatchError) as error:
        constraints.append(Hold("trainer", 0, str(error)))
    try:
        constraints += _monitor(store)
    except (CorruptArtefactError, LogMismatchError) as error:
        constraints.append(Hold("monitor", 0, str(error)))
    return constraints


def histories_from(state: LogState) -> int:
    """Return the sequence of the first pane whose events the user histories do not hold."""
    return state.histories.covered


def _trainer(store: Store) -> Iterator[Hold]:
    """Yield the holds of the trainers of all variants: panes to continue from, and panes to compare bundles on."""
    # Training falls back to an older checkpoint if the newest is damaged, so every one counts.
    marks = [mark for variant in lines(store) for mark in _marks(line_of(store, variant))]
    if marks:
        sequence, path = min(marks)
        yield Hold("trainer", sequence, f"{path.removeprefix(store.path('') + '/')} continues there")
        yield Hold("gate", _gate_from(store, sequence), "bundles are compared on these windows")


def _marks(line: Store) -> list[tuple[int, str]]:
    """Return (pane at which training continues, path) of each checkpoint of a variant."""
    while True:
        names = checkpoint_names(line)
        # A running trainer may remove a listed checkpoint: list again.
        with suppress(FileNotFoundError):
            return [(read_checkpoint_mark(line, name).sequence, line.path(f"checkpoints/{name}")) for name in names]


def _gate_from(store: Store, sequence: int) -> int:
    """Return the first pane that the gate reads for a trainer at pane `sequence`, to have `GATE_CASES` positives."""
    log = WindowLog(store)
    start = log.left(max(sequence - GATE_WINDOWS, 0) - 1)
    before = list(takewhile(lambda pane: pane.sequence < sequence, log.follow(start)))[::-1]
    cases = accumulate((pane.counts.positives for pane in before), initial=0)
    needed = [pane.sequence for pane, later in zip(before, cases, strict=False) if later < GATE_CASES]
    return min(needed, default=sequence)


def _monitor(store: Store) -> Iterator[Hold]:
    """Yield the hold of the recall monitor: the panes that it has not measured yet."""
    place = MonitorPlace.read(store)
    if place is not None:
        yield Hold("monitor", min(place.measured, place.counted) + 1, "not measured, or not in its popularity yet")
    elif store.glob("monitor/*/*.json"):
        yield Hold("monitor", 0, "it has noted no place beside its results: start `weir monitor`, or remove monitor/")


@dataclass(frozen=True)
class _Window:
    """A window that is old enough: its panes, each with the number of the commit that lists it."""

    end_ms: int
    panes: tuple[tuple[int, WindowManifest], ...]

    @property
    def newest(self) -> int:
        """The sequence of the window's newest pane."""
        return max(pane.sequence for _, pane in self.panes)


class _Void(NamedTuple):
    """Commits without a remaining file, and the cursor after them."""

    commits: list[Commit]
    after: Cursor


@dataclass(frozen=True)
class RetirementPlan:
    """The windows that retire, and the readers that hold back further old windows.

    `windows`, `panes`, `files` and `size` (bytes) retire; `commits` counts commits without a remaining file. `held`
    panes are old enough but stay because of `holds`. `retirement` is None if nothing retires.
    """

    retirement: Retirement | None
    commits: int
    windows: int
    panes: int
    files: int
    size: int
    held: int
    holds: tuple[Hold, ...]


def plan_retirement(
    store: Store, state: LogState, older_than_seconds: float, in_log: Set[str] | None
) -> RetirementPlan:
    """Plan the retirement of windows that end `older_than_seconds` of event time before the newest event.

    Parameters
    ----------
    in_log
        Keys of the files that are in the log now (`Partition.key`); None if it cannot be listed: then no source
        partition is forgotten.

    Raises
    ------
    CorruptArtefactError
        If a commit is damaged or lost.
    """
    log = CommitLog(store)
    old = _old(log, store, state, older_than_seconds)
    needed = holds(store, state) if old else []
    limit = min((hold.sequence for hold in needed), default=0)
    going = list(takewhile(lambda window: window.newest < limit, old))
    held = sum(len(window.panes) for window in old[len(going) :])
    void = _void(log, state, going, limit)
    files = _files_of(state, void.commits, going)
    return RetirementPlan(
        retirement=_retirement(state, going, void, in_log),
        commits=len(void.commits),
        windows=len(going),
        panes=sum(len(window.panes) for window in going),
        files=len(files),
        size=sum(file.size for file in files),
        held=held,
        holds=tuple(hold for hold in needed if held and hold.sequence == limit),
    )


def retire(store: Store, state: LogState, plan: RetirementPlan) -> None:
    """Commit a planned retirement and write the snapshot with its horizon, unless the plan is empty; update `state`.

    The files stay (`weir.pipelines.maintenance.cleanup`). Raises `CommitTakenError` if another writer commits first.
    """
    if plan.retirement is None:
        return
    # Key owners outlive the windows that they are read from.
    owners(store, state.cursor.sequence - 1).save()
    log = CommitLog(store)
    requires = (RETENTION, WINDOWS) if plan.retirement.commits else (RETENTION,)
    append(log, state, *requires, retires=plan.retirement)
    state.save(log)


def _old(log: CommitLog, store: Store, state: LogState, older_than_seconds: float) -> list[_Window]:
    """Return the windows that are old enough, oldest first; raises `CorruptArtefactError`."""
    found = read_format(store)
    if found is None or found.layout is None or state.max_event_ms < 0:
        return []
    window_ms = found.layout.window_ms
    cutoff = int(state.max_event_ms - 1000 * older_than_seconds) // window_ms * window_ms
    commits, windows = dict[int, Commit](), list[_Window]()
    for start_ms, known in zip(state.starts, state.panes, strict=True):
        if start_ms >= cutoff:
            break
        windows.append(_Window(start_ms + window_ms, tuple(_panes_of(log, commits, start_ms, known))))
    return windows


def _panes_of(
    log: CommitLog, commits: dict[int, Commit], start_ms: int, known: Panes
) -> list[tuple[int, WindowManifest]]:
    """Return the panes of a window with their commit numbers; `commits` caches commits by number."""
    number, panes = known.commit, list[tuple[int, WindowManifest]]()
    while number >= 0:
        if number not in commits:
            commits[number] = log.get(number)
        listed = [(number, pane) for pane in commits[number].panes if pane.start_ms == start_ms]
        panes += listed
        number = listed[0][1].previous if listed else -1
    if len(panes) == known.count:
        return panes
    # Panes that the pipeline did not write do not name their predecessors: search all commits.
    first = log.first().number
    between = (log.get(number) for number in range(first, known.commit + 1))
    return [(commit.number, pane) for commit in between for pane in commit.panes if pane.start_ms == start_ms]


def _void(log: CommitLog, state: LogState, going: list[_Window], limit: int) -> _Void:
    """Return the first commits of the log that have no file left once the windows `going` have retired.

    They end before a commit with a pane that stays, and before pane `limit`, which a reader needs.
    """
    gone, at, commits = {pane.sequence for window in going for _, pane in window.panes}, log.first(), list[Commit]()
    horizon_ms = state.horizon.ms if state.horizon else None
    while going and at.number < state.cursor.number and (step := log.next(at)) is not None:
        left = (
            pane
            for pane in step[0].panes
            if pane.sequence not in gone and (horizon_ms is None or pane.start_ms >= horizon_ms)
        )
        if any(left) or step[1].sequence > limit:
            break
        commits.append(step[0])
        at = step[1]
    return _Void(commits, at)


def _retirement(state: LogState, going: list[_Window], void: _Void, in_log: Set[str] | None) -> Retirement | None:
    """Return the record of a retirement for its commit; None if no window retires."""
    if not going:
        return None
    first = void.after
    forgotten = _forgotten(state, first.number, in_log) if in_log is not None else []
    gone = {file.name for commit in void.commits for file in (*commit.letters, *commit.rewritten)}
    named = {name for key, span in state.sources.items() if key not in forgotten for name in span.letters}
    newest = going[-1].end_ms
    return Retirement(
        ms=max(newest, state.horizon.ms if state.horizon else newest),
        number=first.number,
        sequence=first.sequence,
        checksum=first.checksum,
        whole=True,
        sources=tuple(forgotten),
        letters=tuple(sorted(gone & named)),
        commits=tuple(sorted({number for window in going for number, _ in window.panes if number >= first.number})),
    )


def _forgotten(state: LogState, first: int, in_log: Set[str]) -> list[str]:
    """Return the keys of deleted log files whose rows were all counted by retiring commits.

    If a forgotten file comes back, its rows lie before the horizon and are refused, never counted again. All
    generations of a file are forgotten together, as their numbers are consecutive.
    """
    by_file = defaultdict[str, list[str]](list)
    for key in state.sources:
        by_file[key.rpartition("@")[0] if generation(key) > 1 else key].append(key)
    if in_log.isdisjoint(by_file):
        # The listing is of another log, or of a disk that is not mounted.
        return []
    gone = (keys for name, keys in by_file.items() if name not in in_log and _is_past(state, keys, first))
    return sorted(key for keys in gone for key in keys)


def _is_past(state: LogState, keys: Iterable[str], first: int) -> bool:
    """Return whether all rows of the partitions are counted, and no commit from number `first` on lists them."""
    return all(state.sources[key].is_done and state.listed[key] < first for key in keys)


def _files_of(state: LogState, void: Iterable[Commit], going: Iterable[_Window]) -> list[FileEntry]:
    """Return the files of the retiring windows, and the letters and redactions of void commits."""
    panes = [pane for window in going for _, pane in window.panes]
    files = [file for pane in panes for file in pane.files if pane.sequence not in state.redacted]
    for commit in void:
        files += [file for redacted in commit.redacts for file in redacted.pane.files]
        files += [*commit.letters, *commit.rewritten]
    return files


@dataclass
class Retention:
    """Retires windows older than `older_than_seconds` of event time, at intervals of `pause_seconds`.

    Retired files are removed, `grace_seconds` after their retirement, before more windows retire; this bounds the files
    that wait for removal.
    """

    store: Store
    older_than_seconds: float
    grace_seconds: float = GRACE_SECONDS
    pause_seconds: float = _PAUSE_SECONDS
    _next: float = field(default=-math.inf, init=False)
    _removed: int = field(default=-1, init=False)

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed."""
        return time.monotonic() >= self._next

    def step(self, state: LogState, in_log: Set[str] | None) -> None:
        """Remove retired files, then retire windows that are due; add the commit to `state`.

        Raises `CommitTakenError` if another writer commits first.
        """
        self._next = time.monotonic() + self.pause_seconds
        removal = Removal(self.store, state, self.grace_seconds)
        if removal.seconds_left():
            return
        if self._removed != state.retirement:
            removal.run()
            self._removed = -1 if removal.is_waiting else state.retirement
        plan = plan_retirement(self.store, state, self.older_than_seconds, in_log)
        if plan.held:
            logger.warning("%d panes are older than the retention, but stay: %s", plan.held, _reasons(plan.holds))
        if plan.retirement is not None:
            retire(self.store, state, plan)
            told = plan.windows, plan.panes, plan.retirement
            logger.info("%d windows have retired, with %d panes: events start at %s", *told)


def _reasons(constraints: Iterable[Hold]) -> str:
    return "; ".join(f"{hold.reader}, from pane {hold.sequence} ({hold.why})" for hold in constraints)
