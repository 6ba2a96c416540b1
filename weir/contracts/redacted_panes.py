"""Which committed panes have been redacted, for those who follow the log from an early commit on."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from weir.contracts.commit import Commit
from weir.contracts.commits import CommitLog
from weir.contracts.errors import CorruptArtefactError
from weir.contracts.log_state import LogState
from weir.contracts.storage import Store
from weir.contracts.window import WindowManifest

__all__ = ["LOOK_SECONDS", "RedactedPanes", "as_redacted"]

LOOK_SECONDS: Final = 600.0
"""How long a follower far behind the newest commit may not know of a redaction; replaced files stay for longer."""


@dataclass
class RedactedPanes:
    """What a follower knows of redactions: all up to commit `_newest`, and that there is one in commit `_told`."""

    store: Store
    _commits: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _newest: int = field(default=-1, init=False)
    _told: int = field(default=-1, init=False)
    _next_look: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    def take_in(self, commit: Commit) -> None:
        """Note what a commit redacts that the follower passes."""
        if commit.forgets and commit.redaction == self._newest:
            self._commits |= {one.pane.sequence: commit.number for one in commit.redacts}
            self._newest = commit.number
        self._told = max(self._told, commit.newest_redaction)

    def current(self, panes: Iterable[WindowManifest], number: int) -> tuple[WindowManifest, ...]:
        """Return the panes of a commit as the newest redactions have left them; raises `CorruptArtefactError`."""
        if time.monotonic() >= self._next_look:
            self._look()
        if self._told > max(self._newest, number):
            # Those before the commit are of other panes.
            state = LogState.open(self.store)
            self._commits, self._newest = dict(state.redacted), state.redaction
        return tuple(as_redacted(self._log, pane, self._commits) for pane in panes)

    def _look(self) -> None:
        try:
            self._told = max(self._told, self._log.get(self._log.newest()).newest_redaction)
        except CorruptArtefactError:
            # The follower is told when it comes to the damaged commit.
            return
        self._next_look = time.monotonic() + LOOK_SECONDS


def as_redacted(log: CommitLog, pane: WindowManifest, commits: Mapping[int, int]) -> WindowManifest:
    """Return a pane with its files of now, given the newest commit that redacts each pane (`LogState.redacted`).

    Raises `CorruptArtefactError`.
    """
    number = commits.get(pane.sequence)
    if number is None:
        return pane
    return next(one.pane for one in log.get(number).redacts if one.pane.sequence == pane.sequence)
