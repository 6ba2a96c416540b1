"""The baseline: what was popular before the window, from the sketches of the windows before it."""

import logging
from dataclasses import dataclass, field

import numpy as np

from contracts import ItemKeys, Key, WindowLog, WindowManifest, columns
from sketches import FrequencyView

__all__ = ["Popularity"]

log = logging.getLogger(__name__)


@dataclass
class Popularity:
    """Decayed counts of the items of all windows added so far, and the items' ids by key.

    A window's counts halve with every `half_life_seconds` of event time; one that comes late is added as if it had been
    there all along.
    """

    half_life_seconds: float
    ids: dict[int, str] = field(default_factory=dict)
    _recent: FrequencyView = field(init=False)

    def __post_init__(self) -> None:
        self._recent = FrequencyView(self.half_life_seconds)

    def name(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Remember the ids of a window's items, not their counts."""
        items = windows.items(manifest)
        self.ids.update(zip(items[columns.ITEM_KEY].to_pylist(), items[columns.ITEM_ID].to_pylist(), strict=True))

    def add(self, windows: WindowLog, manifest: WindowManifest) -> None:
        """Count a window; raises `CorruptArtefactError`."""
        self.name(windows, manifest)
        sketch = windows.sketch(manifest)
        try:
            self._recent.add(sketch, manifest.end_ms)
        except ValueError as error:
            log.warning("the windows' sketches changed, popularity starts from zero: %s", error)
            self._recent = FrequencyView(self.half_life_seconds)
            self._recent.add(sketch, manifest.end_ms)

    def top(self, k: int) -> list[Key]:
        """Return the keys of the `k` most frequent items, most frequent first; none before the first window."""
        if self._recent.sketch is None:
            return []
        keys = ItemKeys(np.fromiter(self.ids, np.int64, len(self.ids)))
        order = np.argsort(-self._recent.counts(keys), kind="stable")
        return [Key(key) for key in keys[order[:k]].tolist()]
