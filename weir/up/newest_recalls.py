"""The newest recalls that the monitor has written to the store, each read once."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contracts import CorruptArtefactError, Store, WindowManifest
from serving.monitor.results import WindowRecall, load

__all__ = ["NewestRecalls"]

_KEPT: Final = 20
"""Results to show, and windows of an old store whose results are read."""
_WAITING: Final = 1000
"""Limit of the windows that wait to be measured; without a monitor they would grow forever."""


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
