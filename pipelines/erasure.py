"""Erasure: the removal of what redactions have replaced, after a time of grace for the readers that are still at it.

What is due follows from the log. The files go first, then a commit drops their names: killed in between, the next
erasure finds them gone and drops them. With them go old drafts of killed processes, which may hold the same users.
"""

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import Commit, CommitLog, CommitTakenError, LocalCache, LogState, Store
from weir.contracts.commit import requirements
from weir.contracts.history_files import HISTORIES
from weir.pipelines.attempts import new_run, remove_drafts

__all__ = ["Erasure"]

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 600.0
"""How often a following pipeline looks for what is due."""


@dataclass
class Erasure:
    """Removes what redactions replaced longer ago than `grace_seconds`, and copies in `caches` of this machine."""

    store: Store
    grace_seconds: float
    caches: Iterable[LocalCache] = ()
    _next: float = field(default=-math.inf, init=False)

    def step(self, state: LogState) -> None:
        """Erase what is due, if it is time to look; `state` follows."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE_SECONDS
            self.run(state)

    def waiting(self, state: LogState) -> dict[str, float]:
        """Return what is to be removed, and since when it is replaced (wall clock, seconds).

        Of files of users that are all that were replaced before the newest redaction, or by it.
        """
        users = state.histories.replaced.items()
        return state.erasing | {name: since for name, since in users if since <= state.redacted_at}

    def seconds_left(self, state: LogState) -> float:
        """Return how long it takes until all of it may go."""
        newest = max(self.waiting(state).values(), default=-math.inf)
        return max(0.0, newest + self.grace_seconds - time.time())

    def run(self, state: LogState) -> int:
        """Remove what is due, and commit that it is gone; return how many files and folders those were."""
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
        before = time.time() - self.grace_seconds
        return sorted(name for name, since in self.waiting(state).items() if since <= before)


def _dropping(state: LogState, names: list[str]) -> Commit:
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
