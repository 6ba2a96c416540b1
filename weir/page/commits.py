"""Follow the commits of a store: event counts, commit times of windows, and refused lines."""

import json
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from weir.contracts import Commit, CommitLog, EventClock, LogState, Store, WindowManifest

__all__ = ["Letter", "NewestCommits"]

_KEPT: Final = 300
"""Panes whose commit times are kept, and commits that are read at the start."""
_LETTERS: Final = 30
_RECENT: Final = 5

Letter = dict[str, Any]
"""A dead letter as the pipeline wrote it: partition, position, reason, detail, raw, encoding."""


@dataclass
class NewestCommits:
    """Follows the commits of a store; with `lines`, it also reads the refused lines."""

    store: Store
    lines: bool
    state: LogState = field(default_factory=LogState)
    panes: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_KEPT))
    letters: deque[Letter] = field(default_factory=lambda: deque(maxlen=_LETTERS))
    _opened: bool = False

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def catch_up(self) -> list[WindowManifest]:
        """Read the new commits, and return their panes; raises what `LogState.open` raises."""
        commits = self.state.catch_up(self._log) if self._opened else self._open()
        horizon, new = self.state.horizon, list[WindowManifest]()
        for commit in commits:
            new += [one for one in commit.panes if not (horizon and horizon.has_retired(one.sequence, one.start_ms))]
            if self.lines:
                self._read_letters(commit)
        self.panes.extend(new)
        return new

    def _open(self) -> list[Commit]:
        """Open the log, and return its newest commits."""
        state = LogState.open(self.store)
        first = self._log.first().number
        commits = [self._log.get(number) for number in range(max(first, state.number + 1 - _KEPT), state.number + 1)]
        self.state, self._opened = state, True
        return commits

    def _read_letters(self, commit: Commit) -> None:
        if commit.forgets:
            # After an erasure drop all lines: the users of the lines are unknown here.
            self.letters.clear()
        for file in commit.letters:
            try:
                data = self.store.read(file.name)
            except FileNotFoundError:  # erased or removed since
                continue
            self.letters.extend(json.loads(line) for line in data.splitlines()[-_LETTERS:])

    def committed_at(self, sequence: int) -> float | None:
        """Return the commit time of a pane; None if it is not among the newest."""
        return next((pane.committed_at for pane in reversed(self.panes) if pane.sequence == sequence), None)

    def seconds_to_commit(self, clock: EventClock) -> float | None:
        """Return the median seconds from the newest event of a window to its commit, over the newest windows."""
        newest = [pane for pane in self.panes if pane.pane == 0][-_RECENT:]
        return median(pane.committed_at - clock.wall_time(pane.max_event_ms) for pane in newest) if newest else None
