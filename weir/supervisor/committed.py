"""Running totals over the commits: a look takes in only what is newer than the last one."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from contracts import CommitLog, LogState, Store, WindowCounts, WindowLog, WindowManifest
from logs import Partition
from pipelines.plan import InHand, identify

__all__ = ["Committed"]

_SHOWN_AT_FIRST: Final = 20
"""Panes of an old store that the first look returns."""


@dataclass
class Committed:
    """What the commits that were taken in so far amount to."""

    store: Store
    _state: LogState | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    @property
    def state(self) -> LogState:
        """The state as of the last look."""
        return self._state or LogState()

    @property
    def windows(self) -> int:
        """Panes committed."""
        return self.state.cursor.sequence

    @property
    def counts(self) -> WindowCounts:
        """What was counted in all of them."""
        return self.state.counts

    @property
    def dead(self) -> int:
        """Rows refused."""
        return self.state.dead

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest pane, -1 before the first."""
        return self.windows - 1

    @property
    def committed_at(self) -> float:
        """When the newest pane was committed, wall clock, seconds since 1970."""
        return self.state.committed_at

    def catch_up(self) -> list[WindowManifest]:
        """Take in the panes committed since the last time, and return them; of an old store only the newest.

        Raises what `LogState.open` raises; the totals stay those of before the commit at fault.
        """
        if self._state is None:
            self._state = LogState.open(self.store)
            return WindowLog(self.store).committed(after=max(-1, self.last_sequence - _SHOWN_AT_FIRST))
        return [pane for commit in self._state.catch_up(self._log) for pane in commit.panes]

    def covers(self, partitions: Collection[Partition]) -> bool:
        """Say whether the commits account for all rows of these partitions, at their present size."""
        known = self.state.sources
        found = identify(partitions, self.state, InHand())
        return len(found) == len(partitions) and all(
            part.key in known and known[part.key].is_done and known[part.key].size == part.size for part in found
        )
