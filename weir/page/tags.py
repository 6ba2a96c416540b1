"""The newest features of items, as texts for the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.contracts import Store, WindowLog, WindowManifest, columns

__all__ = ["Tags"]

_MOST: Final = 100_000
"""Most items that are kept; beyond that, those not updated for longest are dropped."""


@dataclass
class Tags:
    """Features of the items in the newest windows; empty without `pipeline.item_features`."""

    store: Store
    _words: dict[str, list[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._windows = WindowLog(self.store)

    def add(self, panes: Iterable[WindowManifest]) -> None:
        """Read the items of panes, in commit order; raises `CorruptArtefactError`."""
        for pane in panes:
            if names := pane.item_features.all:
                self._add(self._windows.items(pane), self._windows.item_features(pane), names)

    def _add(self, items: Any, features: Any, names: Sequence[str]) -> None:
        ids = dict(zip(items[columns.ITEM_KEY].to_pylist(), items[columns.ITEM_ID].to_pylist(), strict=True))
        for row in features.to_pylist():
            item = ids[row[columns.ITEM_KEY]]
            words = [f"{name} {_text(value)}" for name in names if (value := row[name]) not in (None, [])]
            if words:
                # Moved to the end: the newest are last.
                self._words.pop(item, None)
                self._words[item] = words
        for item in list(self._words)[: max(0, len(self._words) - _MOST)]:
            del self._words[item]

    def of(self, item: str) -> list[str]:
        """Return the features of an item, such as ``genre jazz, blues``."""
        return self._words.get(item, [])


def _text(value: float | list[str]) -> str:
    return ", ".join(value) if isinstance(value, list) else f"{value:g}"
