"""What runs of the pipeline have committed, in numbers."""

from collections import Counter

from pydantic import Field

from weir.contracts import Commit, WindowCounts
from weir.contracts.models import FrozenModel

__all__ = ["IngestSummary"]


class IngestSummary(FrozenModel):
    """What was committed, by one run or since the start."""

    read: int = Field(default=0, description="rows accounted for: valid, duplicates, ignored and dead")
    valid: int = Field(default=0, description="distinct valid events committed")
    dead: int = Field(default=0, description="rows refused")
    refused: dict[str, int] = Field(default={}, description="rows refused, by reason")
    duplicates: int = Field(default=0, description="events dropped because their event_id was known")
    late: int = Field(default=0, description="of the valid: came after their window was committed")
    ignored: int = Field(default=0, description="events of ignored types")
    windows: int = Field(default=0, description="windows committed for the first time")
    panes: int = Field(default=0, description="commits")
    runs: int = Field(default=0, description="pipeline runs")
    seconds: float = Field(default=0.0, description="wall time of the runs, seconds")

    @classmethod
    def of(cls, commit: Commit | None, seconds: float) -> "IngestSummary":
        """Sum up one run."""
        if commit is None:
            return cls(runs=1, seconds=seconds)
        counts = sum((pane.counts for pane in commit.panes), WindowCounts())
        dead = sum(file.rows for file in commit.letters)
        return cls(
            read=counts.events + counts.duplicates + counts.ignored + dead,
            valid=counts.events,
            dead=dead,
            refused=dict(sum((Counter(file.reasons) for file in commit.letters), Counter())),
            duplicates=counts.duplicates,
            late=counts.late,
            ignored=counts.ignored,
            windows=sum(pane.pane == 0 for pane in commit.panes),
            panes=len(commit.panes),
            runs=1,
            seconds=seconds,
        )

    def __add__(self, other: "IngestSummary") -> "IngestSummary":
        mine, theirs = self.model_dump(), other.model_dump()
        refused = Counter(mine.pop("refused")) + Counter(theirs.pop("refused"))
        return IngestSummary(**{name: mine[name] + theirs[name] for name in mine}, refused=dict(refused))
