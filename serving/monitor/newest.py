"""The newest results in the store, each read once, and their means."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import CorruptArtefactError, Store, WindowManifest
from weir.contracts.pooling import of_newest_windows
from weir.serving.monitor.results import WindowRecall, load

__all__ = ["NewestRecalls", "mean_recall", "recent_cases"]

_RECENT: Final = 5
"""Windows over which recalls are averaged."""
_WAITING: Final = 1000
"""Limit of the panes that wait to be measured; without a monitor they would grow forever."""


def mean_recall(recalls: Sequence[WindowRecall], kind: str, k: int, last: int = _RECENT) -> float | None:
    """Return a recall's mean over the newest windows that have it, all of their panes, weighted by their examples."""
    found = [(getattr(recall, kind)[k], recall.cases(kind)) for recall in _newest(recalls, kind, k, last)]
    total = sum(examples for _, examples in found)
    return sum(value * examples for value, examples in found) / total if total else None


def recent_cases(recalls: Sequence[WindowRecall], kind: str, k: int) -> int:
    """Return the examples behind `mean_recall`."""
    return sum(recall.cases(kind) for recall in _newest(recalls, kind, k, _RECENT))


def _newest(recalls: Sequence[WindowRecall], kind: str, k: int, last: int) -> list[WindowRecall]:
    return of_newest_windows(((one.window, one) for one in recalls if k in getattr(one, kind)), last)


@dataclass
class NewestRecalls:
    """Follows the monitor, which measures windows in commit order: two reads show that there is nothing new.

    `kept` limits the results, and the panes of an old store whose results are read.
    """

    store: Store
    kept: int = 100
    recalls: deque[WindowRecall] = field(init=False)
    _waiting: deque[WindowManifest] = field(default_factory=lambda: deque(maxlen=_WAITING))

    def __post_init__(self) -> None:
        self.recalls = deque(maxlen=self.kept)

    def expect(self, windows: Iterable[WindowManifest]) -> None:
        """Expect results for newly committed windows; for many at once, as in an old store, only for the newest."""
        self._waiting.extend(deque(windows, maxlen=self.kept))

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
