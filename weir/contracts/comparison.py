"""How a challenger compares with the champion, on the same events and on users split between them.

``variants/<challenger>/COMPARISON.json`` is written by the monitor, as one file: how far it has counted, and what. So
every window counts once, however often the monitor is restarted, and the intervals stay valid at every look.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from weir.contracts.commit import CommitRef
from weir.contracts.confidence import Interval, Running
from weir.contracts.documents import Document, read_document, write_document
from weir.contracts.storage import Store

__all__ = ["MEASURES", "Comparison", "Measure", "Measured", "Word"]

Measure = Literal["recall", "clicks"]
"""What is compared: recall as served, or the share of a user's lists that were clicked."""

MEASURES: Final[tuple[Measure, ...]] = ("recall", "clicks")

Word = Literal["better", "worse", "not yet"]


class Measured(NamedTuple):
    """The champion's and the challenger's mean, and the interval of the challenger's less the champion's."""

    champion: float
    challenger: float
    interval: Interval
    units: int

    @property
    def word(self) -> Word:
        """Whether the challenger is better, worse, or neither is known yet."""
        if self.interval.low > 0:
            return "better"
        return "worse" if self.interval.high < 0 else "not yet"


class Comparison(Document):
    """The evidence so far; without any, every interval holds everything."""

    champion: str
    challenger: str
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    k: int = Field(default=20, ge=1, description="cut-off of recall")
    started_at: float = Field(default=0.0, description="wall clock, seconds since 1970")
    sequence: int = Field(default=-1, description="newest window that is counted, or was passed over")
    commit: CommitRef | None = Field(default=None, description="the commit of that window, where it is known")
    windows: int = Field(default=0, ge=0, description="windows that count")
    hits: Mapping[str, Running] = Field(
        default_factory=dict, description="by line: recall at k of each user within a window"
    )
    differences: Running = Field(
        default_factory=Running,
        description="challenger less champion of each user within a window, from -1 to 1 as 0 to 1",
    )
    skipped: Mapping[str, int] = Field(default_factory=dict, description="reason -> events that do not count")
    clicks: Mapping[str, Running] = Field(
        default_factory=dict, description="by line: share of lists clicked, each user once"
    )
    counted: str = Field(
        default="",
        description="slots of users whose clicks are counted: bits, zlib, base64; no key can be read from it",
    )

    @classmethod
    def read(cls, store: Store, challenger: str) -> "Comparison | None":
        """Return what is stored, None without; raises `CorruptArtefactError`."""
        try:
            return read_document(store, _path(challenger), cls)
        except FileNotFoundError:
            return None

    @classmethod
    def between(cls, store: Store, one: str, other: str) -> "Comparison | None":
        """Return what is stored of two lines, whichever of them challenged the other, the newest; None without.

        Raises `CorruptArtefactError`.
        """
        found = [made for name in (one, other) if (made := cls.read(store, name)) is not None]
        pairs = [made for made in found if {made.champion, made.challenger} == {one, other}]
        return max(pairs, key=lambda made: made.started_at, default=None)

    def write(self, store: Store) -> None:
        """Store it."""
        write_document(store, _path(self.challenger), self)

    def measured(self, measure: Measure) -> Measured:
        """Return how the two compare, at level 1 - `alpha` for each measure by itself, at all looks together."""
        return self._of_recall() if measure == "recall" else self._of_clicks()

    def sentence(self, measure: Measure) -> str:
        """Return the verdict in a sentence."""
        found = self.measured(measure)
        what = f"recall@{self.k} as served" if measure == "recall" else "share of lists clicked"
        units = "users within a window" if measure == "recall" else "users"
        return (
            f"{found.word}: {what} of {self.challenger} is {found.challenger:.4f}, of {self.champion} "
            f"{found.champion:.4f}; the difference is from {found.interval.low:+.4f} to {found.interval.high:+.4f}, "
            f"at any look with probability {1 - self.alpha:g}, on {found.units:,} {units}"
        )

    def _of_recall(self) -> Measured:
        low, high = self.differences.interval(self.alpha)
        champion, challenger = (_mean_of(self.hits.get(line, Running())) for line in (self.champion, self.challenger))
        return Measured(champion, challenger, Interval(2 * low - 1, 2 * high - 1), self.differences.count)

    def _of_clicks(self) -> Measured:
        """Give each side half of alpha: both intervals hold together, and so does the one of the difference."""
        champion, challenger = (self.clicks.get(line, Running()) for line in (self.champion, self.challenger))
        before, after = champion.interval(self.alpha / 2), challenger.interval(self.alpha / 2)
        difference = Interval(after.low - before.high, after.high - before.low)
        units = champion.count + challenger.count
        return Measured(_mean_of(champion), _mean_of(challenger), difference, units)


def _mean_of(side: Running) -> float:
    return side.mean if side.count else 0.0


def _path(challenger: str) -> str:
    return f"variants/{challenger}/COMPARISON.json"
