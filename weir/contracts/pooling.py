"""Means over the cases of the newest windows: what a few late events make of a pane counts as what it is, a few events.

A window counts with all of its panes, and windows with few cases are pooled, so that the means depend on the cases
alone and not on how windows are split into panes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from weir.contracts.places import GATE_CASES

__all__ = ["Pool", "of_newest_windows", "window_of"]

_MOST_WINDOWS: Final = 1000
"""Windows that are kept, should they have hardly a case each."""

T = TypeVar("T")


def window_of(pane: str) -> str:
    """Return the slice of event time of a pane, given its name: slices sort by time."""
    return pane.partition("/")[0]


def of_newest_windows(panes: Iterable[tuple[str, T]], windows: int) -> list[T]:
    """Return what belongs to the newest windows, given by the name of its pane, in the given order."""
    given = list(panes)
    newest = set(sorted({window_of(name) for name, _ in given})[-windows:])
    return [one for name, one in given if window_of(name) in newest]


@dataclass
class _Sums:
    cases: int = 0
    values: dict[int, float] = field(default_factory=dict)

    def add(self, cases: int, values: Mapping[int, float]) -> None:
        """Add the sums of further cases, by k."""
        self.cases += cases
        for k, value in values.items():
            self.values[k] = self.values.get(k, 0.0) + value


@dataclass
class Pool:
    """Adds up the means of panes, by kind and k; each kind counts cases of its own."""

    enough: int = GATE_CASES
    _windows: dict[str, dict[str, _Sums]] = field(default_factory=dict, init=False)

    def add(self, pane: str, kind: str, means: Mapping[int, float], cases: int) -> None:
        """Add the means over the cases of a pane, given by its name."""
        if not cases or not means:
            return
        kinds = self._windows.setdefault(window_of(pane), {})
        kinds.setdefault(kind, _Sums()).add(cases, {k: cases * mean for k, mean in means.items()})
        if len(self._windows) > _MOST_WINDOWS:
            del self._windows[min(self._windows)]

    def means(self, kind: str) -> dict[int, float]:
        """Return the means over the cases of the newest window, and of those before until there are `enough`."""
        pooled = _Sums()
        for window in sorted(self._windows, reverse=True):
            if (sums := self._windows[window].get(kind)) is not None:
                pooled.add(sums.cases, sums.values)
            if pooled.cases >= self.enough:
                break
        return {k: value / pooled.cases for k, value in pooled.values.items()}
