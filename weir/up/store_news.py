"""What is new in the store: running totals over the commits; each is read once."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import CommitLog, LogState, Store, WindowLog, WindowManifest
from weir.pipelines.layout import identify_files
from weir.readers import Partition

__all__ = ["CommitTotals"]

_SHOWN_AT_FIRST: Final = 100
"""Panes of an old store that the first reading returns."""


@dataclass
class CommitTotals:
    """Totals of the commits read so far."""

    store: Store
    _state: LogState | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._log = CommitLog(self.store)

    @property
    def state(self) -> LogState:
        """The state as of the last reading."""
        return self._state or LogState()

    @property
    def windows(self) -> int:
        """Number of committed panes."""
        return self.state.cursor.sequence

    def catch_up(self) -> list[WindowManifest]:
        """Add and return the panes committed since the last time; of an old store, return only the newest.

        Raises what `LogState.open` raises; the totals then remain those before the faulty commit.
        """
        if self._state is None:
            self._state = LogState.open(self.store)
            return WindowLog(self.store).newest(_SHOWN_AT_FIRST)
        return [pane for commit in self._state.catch_up(self._log) for pane in commit.panes]

    def covers(self, partitions: Collection[Partition]) -> bool:
        """Say whether the commits account for all rows of these partitions, at their current size."""
        known = self.state.sources
        found = identify_files(partitions, self.state.sources)
        return len(found) == len(partitions) and all(
            part.key in known and known[part.key].is_done and known[part.key].size == part.size for part in found
        )
