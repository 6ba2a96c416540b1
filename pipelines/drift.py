"""How the newest window differs from those before it, updated commit by commit."""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from weir.contracts import CorruptArtefactError, WindowLog, WindowManifest, columns
from weir.sketches import Counted, head_distance, unseen_share

__all__ = ["Drift", "RecentItems"]

logger = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000


class Drift(NamedTuple):
    """Distance of the heads from 0 to 1, and the share of events on new items; NaN with nothing to compare."""

    distance: float
    unseen: float


class RecentItems:
    """Item counts of the newest window by event time and of those before it, all panes of a window together.

    The panes committed after sequence `after` are read at once. "Before" are the windows that start within an
    hour, or within the length of a window if that is longer, before the newest one starts; after a silence longer
    than that, the last window before it.
    """

    def __init__(self, log: WindowLog, after: int = -1) -> None:
        self._log = log
        self._windows: dict[int, Counted] = {}
        self.add(log.committed(log.left(after)))

    def add(self, manifests: Sequence[WindowManifest]) -> None:
        """Add further commits, in any order of event time; a damaged one is left out with a warning."""
        starts = sorted({*self._windows, *(manifest.start_ms for manifest in manifests)})
        if not starts:
            return
        lookback = max([_HOUR_MS, *(manifest.end_ms - manifest.start_ms for manifest in manifests[-1:])])
        kept = {start for start in starts if start >= starts[-1] - lookback} | set(starts[-2:])
        self._windows = {start: counted for start, counted in self._windows.items() if start in kept}
        for manifest in manifests:
            if manifest.start_ms in kept:
                self._add_pane(manifest)

    def drift(self) -> Drift:
        """Compare the newest window with those before it."""
        *earlier, newest = [self._windows[start] for start in sorted(self._windows)] or [_NOTHING]
        before = _sum(earlier)
        if not len(before.keys):
            return Drift(float("nan"), float("nan"))
        return Drift(head_distance(earlier[-1], newest), unseen_share(newest, before.keys))

    def _add_pane(self, manifest: WindowManifest) -> None:
        try:
            items = self._log.items(manifest)
        except CorruptArtefactError as error:
            logger.warning("left out of the drift: %s", error)
            return
        pane = Counted(items[columns.ITEM_KEY].to_numpy(), items[columns.COUNT].to_numpy())
        start = manifest.start_ms
        self._windows[start] = _sum([self._windows[start], pane]) if start in self._windows else pane


_NOTHING: Final = Counted(np.empty(0, np.int64), np.empty(0, np.int64))


def _sum(parts: Sequence[Counted]) -> Counted:
    keys = np.concatenate([_NOTHING.keys, *(part.keys for part in parts)])
    counts = np.concatenate([_NOTHING.counts, *(part.counts for part in parts)])
    distinct, place = np.unique(keys, return_inverse=True)
    return Counted(distinct, np.bincount(place, weights=counts, minlength=len(distinct)))
