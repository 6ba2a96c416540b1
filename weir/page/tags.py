"""What the log says of items beside their ids: the newest values of their features, as words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.contracts import Store, WindowLog, WindowManifest, columns

__all__ = ["Tags"]

_MOST: Final = 100_000
"""Items that are known; beyond that, those named longest ago are forgotten."""


@dataclass
class Tags:
    """The features of the items of the newest windows; without `pipeline.item_features` there are none."""

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
                # The newest ones are at the end.
                self._words.pop(item, None)
                self._words[item] = words
        for item in list(self._words)[: max(0, len(self._words) - _MOST)]:
            del self._words[item]

    def of(self, item: str) -> list[str]:
        """Return what is known of an item, such as ``genre jazz, blues``."""
        return self._words.get(item, [])


def _text(value: float | list[str]) -> str:
    return ", ".join(value) if isinstance(value, list) else f"{value:g}"
