"""Means over the newest windows, and confidence intervals that stay valid at every look.

A window counts with all of its panes, and windows with few cases are pooled: the means depend on the cases alone, not
on how windows are split into panes.

For observations x_1, x_2, ... in [0, 1], dependent in any way, with conditional means m_i = E[x_i | the past] and
predictions p_i that depend on the past alone,

    exp(l sum(x_i - m_i) - psi(l) V),   psi(l) = -log(1 - l) - l,   V = sum (x_i - p_i)^2

is at most a supermartingale that starts at 1, for every l in [0, 1) (Howard, Ramdas, McAuliffe and Sekhon,
Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of Statistics 49 (2021), arXiv 1810.08240,
Theorem 4; the inequality behind it is Lemma 4.1 of Fan, Grama and Liu 2015). So is a mixture over l, which by Ville's
inequality ever reaches 1 / alpha with probability alpha at most. The running mean of the m_i therefore lies in
`Running.interval` at all times together with probability 1 - alpha, even if the m_i change.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts.base.models import StoredModel

__all__ = ["GATE_CASES", "Interval", "Pool", "Running", "boundary", "of_newest_windows", "window_of"]

GATE_CASES: Final = 200
"""Least number of events to compare bundles on: the gate looks back until it has this number."""
_MOST_WINDOWS: Final = 1000
"""Limit on windows in memory, in case each has hardly any cases."""
_RATES: Final = np.geomspace(1e-4, 0.95, 48)
"""The l of the mixture: for any V from 1 to 1e8 one of them is near the best; the mixture costs a factor of 48."""
_PSI: Final = -np.log1p(-_RATES) - _RATES
_HALVINGS: Final = 32
T = TypeVar("T")


def window_of(pane: str) -> str:
    """Return the window (slice of event time) of a pane's name; names of windows sort by time."""
    return pane.partition("/")[0]


def of_newest_windows(panes: Iterable[tuple[str, T]], windows: int) -> list[T]:
    """Return the values of the panes of the newest `windows` windows, in order; `panes` are (name of pane, value)."""
    given = list(panes)
    newest = set(sorted({window_of(name) for name, _ in given})[-windows:])
    return [value for name, value in given if window_of(name) in newest]


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
    """Pools the means of panes over windows, by kind of measure and cut-off k, until there are `enough` cases."""

    enough: int = GATE_CASES
    _windows: dict[str, dict[str, _Sums]] = field(default_factory=dict, init=False)

    def add(self, pane: str, kind: str, means: Mapping[int, float], cases: int) -> None:
        """Add the means (k -> mean) of one kind over the `cases` of a pane."""
        if not cases or not means:
            return
        kinds = self._windows.setdefault(window_of(pane), {})
        kinds.setdefault(kind, _Sums()).add(cases, {k: cases * mean for k, mean in means.items()})
        if len(self._windows) > _MOST_WINDOWS:
            del self._windows[min(self._windows)]

    def means(self, kind: str) -> dict[int, float]:
        """Return k -> mean over the newest windows that together have `enough` cases, or over all windows."""
        pooled = _Sums()
        for window in sorted(self._windows, reverse=True):
            if (sums := self._windows[window].get(kind)) is not None:
                pooled.add(sums.cases, sums.values)
            if pooled.cases >= self.enough:
                break
        return {k: value / pooled.cases for k, value in pooled.values.items()}


class Interval(NamedTuple):
    """A closed interval."""

    low: float
    high: float


def boundary(variance: float, alpha: float) -> float:
    """Return the bound that sum(x_i - m_i) exceeds with probability `alpha` at most, while V is `variance`."""
    wanted = math.log(len(_RATES) / alpha)
    # One term that is large enough makes the whole mixture large enough.
    low, high = 0.0, float(np.min((wanted + _PSI * variance) / _RATES))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_sum(_RATES * middle - _PSI * variance) < wanted:
            low = middle
        else:
            high = middle
    return high


def _log_sum(logs: npt.NDArray[np.float64]) -> float:
    """Return log(sum(exp(logs)))."""
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))


class Running(StoredModel):
    """Observations in [0, 1], summarised by the three numbers that an interval needs."""

    count: int = Field(default=0, ge=0)
    total: float = Field(default=0.0, ge=0, description="their sum")
    variance: float = Field(default=0.0, ge=0, description="sum of squares of each less the mean of those before it")

    def add(self, values: npt.ArrayLike) -> Self:
        """Return these observations with further `values` (n,), in order; raises `ValueError` outside [0, 1]."""
        new = np.asarray(values, np.float64)
        if new.size == 0:
            return self
        if not (new.min() >= 0 and new.max() <= 1):
            raise ValueError(f"observations from {new.min()} to {new.max()}: must be from 0 to 1")
        before = self.total + np.concatenate([[0.0], np.cumsum(new)[:-1]])
        # The prediction starts from one imagined observation of one half.
        predicted = (before + 0.5) / (self.count + np.arange(len(new)) + 1)
        return self.model_copy(
            update={
                "count": self.count + len(new),
                "total": self.total + float(new.sum()),
                "variance": self.variance + float(((new - predicted) ** 2).sum()),
            }
        )

    @property
    def mean(self) -> float:
        """The mean; 0.5 without observations."""
        return self.total / self.count if self.count else 0.5

    def interval(self, alpha: float) -> Interval:
        """Return the interval of the running mean of conditional means at level 1 - alpha, for all times together."""
        if not self.count:
            return Interval(0.0, 1.0)
        reach = boundary(self.variance, alpha / 2) / self.count
        return Interval(max(0.0, self.mean - reach), min(1.0, self.mean + reach))
