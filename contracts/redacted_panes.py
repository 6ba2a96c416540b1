"""Which committed panes have been redacted, for those who follow the log from an early commit on."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contracts.commits import Commit, CommitLog
from contracts.errors import CorruptArtefactError
from contracts.log_state import LogState
from contracts.storage import Store
from contracts.window import WindowManifest

__all__ = ["LOOK_SECONDS", "RedactedPanes"]

LOOK_SECONDS: Final = 600.0
"""How long a follower far behind the newest commit may not know of a redaction; replaced files stay for longer."""


@dataclass
class RedactedPanes:
    """The redactions of a store: all that there were at the last look, and those that a follower has passed since."""

    store: Store
    _commits: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _newest: int = field(default=-1, init=False)
    _next_look: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def take_in(self, commit: Commit) -> None:
        """Note what a commit redacts."""
        if commit.forgets > 0 and commit.number > self._newest:
            self._commits |= {one.pane.sequence: commit.number for one in commit.redacts}
            self._newest = commit.number

    def current(self, panes: Iterable[WindowManifest]) -> tuple[WindowManifest, ...]:
        """Return panes as the newest redactions have left them; raises `CorruptArtefactError`."""
        if time.monotonic() >= self._next_look:
            self._look()
        return tuple(self._current(pane) for pane in panes)

    def _look(self) -> None:
        try:
            newest = self._log.get(self._log.newest()).newest_redaction
            if newest > self._newest:
                state = LogState.open(self.store)
                self._commits, self._newest = dict(state.redacted), state.redaction
        except CorruptArtefactError:
            # The follower is told when it comes to the damaged commit.
            return
        self._next_look = time.monotonic() + LOOK_SECONDS

    def _current(self, pane: WindowManifest) -> WindowManifest:
        number = self._commits.get(pane.sequence)
        if number is None:
            return pane
        return next(one.pane for one in self._log.get(number).redacts if one.pane.sequence == pane.sequence)
