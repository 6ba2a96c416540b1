"""What age costs: the recall of older bundles and older histories, as figures (`weir.age_report` draws them)."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from weir.contracts import Store
from weir.contracts.base.models import FrozenModel
from weir.serving.monitor.aged import Aged, Judged, Sampling, judged
from weir.serving.monitor.results import UP_TO, Of, WindowRecall, recorded
from weir.trainer.offline.statistics import interval
from weir.verdict import wilson

__all__ = ["AgeFacts", "AgePoint", "Longer", "ServedAge", "age_facts"]


_AGED: Final[tuple[Aged, ...]] = ("bundle", "history", "both")


class AgePoint(FrozenModel):
    """Recall at one age, and the freshest recall on the same events."""

    aged: Aged = Field(description="what is older: the bundle, the history, or both")
    windows: int = Field(description="age: windows of event time")
    cases: int = Field(description="events that both answered")
    recall: float
    freshest: float = Field(description="recall on the same events of the youngest bundle, and of the newest history")
    low: float = Field(description="95 % interval of the difference, over users")
    high: float

    @property
    def difference(self) -> float:
        """Recall at this age minus the freshest recall; negative if age costs recall."""
        return self.recall - self.freshest


class Longer(FrozenModel):
    """Estimated recall difference with windows `times` as long: the mean over the ages that bundles would have had."""

    times: int
    cases: int
    difference: float
    low: float
    high: float


class ServedAge(FrozenModel):
    """Recall of served answers whose bundle or histories had an age in a range."""

    of: Of
    up_to: float | None = Field(description="seconds; null: beyond the largest range")
    cases: int
    recall: float
    low: float
    high: float


class AgeFacts(FrozenModel):
    """All figures on age at the cut-off `k`; `window_seconds` is the length of a window, None without windows."""

    k: int
    window_seconds: float | None
    windows: int = Field(description="windows that kept bundles were asked about")
    points: tuple[AgePoint, ...]
    longer: tuple[Longer, ...]
    served: tuple[ServedAge, ...]


def age_facts(store: Store, sampling: Sampling) -> AgeFacts:
    """Measure the recall of kept bundles by age, and summarise the monitor's results by age.

    Raises `CorruptArtefactError`.
    """
    found = judged(store, sampling)
    points = (_point(found, aged, age) for aged in _AGED for age in range(1, sampling.ages + 1))
    longer = (_longer(found, times) for times in range(2, sampling.ages + 1))
    return AgeFacts(
        k=sampling.k,
        window_seconds=(found[-1].window.end_ms - found[-1].window.start_ms) / 1000 if found else None,
        windows=len(found),
        points=tuple(point for point in points if point is not None),
        longer=tuple(one for one in longer if one is not None),
        served=tuple(_served(recorded(store), sampling.k)),
    )


def _point(found: Iterable[Judged], aged: Aged, age: int) -> AgePoint | None:
    freshest: tuple[Aged, int] = ("history", 0) if aged == "history" else (aged, 1)
    pairs = [(one, one.hits[aged, age], one.hits[freshest]) for one in found if (aged, age) in one.hits]
    if not pairs:
        return None
    new, old = (np.concatenate([pair[place] for pair in pairs]).astype(float) for place in (2, 1))
    low, high = _interval(old - new, [pair[0] for pair in pairs])
    if np.isnan(low):  # one user
        return None
    return AgePoint(aged=aged, windows=age, cases=len(old), recall=old.mean(), freshest=new.mean(), low=low, high=high)


def _longer(found: Iterable[Judged], times: int) -> Longer | None:
    """Estimate the recall difference with windows `times` as long, from windows with kept bundles of all ages needed.

    Each age has the same weight. None if no window has all these bundles.
    """
    ages = range(1, times + 1)
    chosen = [one for one in found if all(("both", age) in one.hits for age in ages)]
    if not chosen:
        return None
    values = np.concatenate(
        [np.mean([one.hits["both", age] for age in ages], axis=0) - one.hits["both", 1] for one in chosen]
    )
    low, high = _interval(values, chosen)
    if np.isnan(low):
        return None
    return Longer(times=times, cases=len(values), difference=values.mean(), low=low, high=high)


def _interval(values: npt.NDArray[np.float64], windows: Sequence[Judged]) -> tuple[float, float]:
    users = np.concatenate([one.users for one in windows])
    return interval(values, users, generator=np.random.default_rng(0))


def _served(results: Sequence[WindowRecall], k: int) -> Iterable[ServedAge]:
    ranges: tuple[float | None, ...] = (*UP_TO, None)
    kinds: tuple[Of, ...] = ("bundle", "history")
    for of, up_to in ((of, up_to) for of in kinds for up_to in ranges):
        those = [one for result in results for one in result.ages if (one.of, one.up_to) == (of, up_to)]
        cases = sum(one.cases for one in those if k in one.hits)
        if cases:
            share = sum(one.hits.get(k, 0) for one in those) / cases
            low, high = wilson(share, cases)
            yield ServedAge(of=of, up_to=up_to, cases=cases, recall=share, low=low, high=high)
