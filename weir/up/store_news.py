"""What is new in the store: running totals over the commits, and the newest recalls; each is read once."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from contracts import CommitLog, CorruptArtefactError, LogState, Store, WindowLog, WindowManifest
from logs import Partition
from pipelines.plan import InHand, identify
from serving.monitor.results import WindowRecall, load

__all__ = ["CommitTotals", "NewestRecalls"]

_SHOWN_AT_FIRST: Final = 20
"""Panes of an old store that the first reading returns."""
_KEPT: Final = 20
"""Results to show, and windows of an old store whose results are read."""
_WAITING: Final = 1000
"""Limit of the windows that wait to be measured; without a monitor they would grow forever."""


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
        found = identify(partitions, self.state, InHand())
        return len(found) == len(partitions) and all(
            part.key in known and known[part.key].is_done and known[part.key].size == part.size for part in found
        )


@dataclass
class NewestRecalls:
    """Follows the monitor, which measures windows in commit order: two reads show that there is nothing new."""

    store: Store
    recalls: deque[WindowRecall] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _waiting: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_WAITING))

    def expect(self, windows: Iterable[WindowManifest]) -> None:
        """Expect results for newly committed windows; for many at once, as in an old store, only for the newest."""
        self._waiting.extend(deque(windows, maxlen=_KEPT))

    def catch_up(self) -> None:
        """Read the results that are new; raises `CorruptArtefactError` for a damaged one, which is then left out."""
        while self._waiting and (self._take_first() or self._skip_first()):
            pass

    def _take_first(self) -> bool:
        try:
            found = load(self.store, self._waiting[0])
        except CorruptArtefactError:
            self._waiting.popleft()
            raise
        if found is None:
            return False
        self.recalls.append(found)
        self._waiting.popleft()
        return True

    def _skip_first(self) -> bool:
        """Skip a window that the monitor has passed over: a later one is measured and it still is not."""
        if len(self._waiting) < 2 or load(self.store, self._waiting[-1]) is None:
            return False
        if load(self.store, self._waiting[0]) is None:
            self._waiting.popleft()
        return True
