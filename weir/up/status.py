"""What the stages have done so far, at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from contracts import WindowCounts
from serving.client import Info
from serving.monitor.results import WindowRecall

__all__ = ["Status", "mean_recall"]

_RECENT: Final = 5
"""Windows over which recalls are averaged."""


@dataclass(frozen=True)
class Status:
    """State of all stages; `problems` says, by part, what could not be read."""

    seconds: float
    replayed: float | None
    windows: int = 0
    counts: WindowCounts = field(default_factory=WindowCounts)
    dead: int = 0
    last_sequence: int = -1
    newest_bundle: str | None = None
    current: str | None = None
    trained_sequence: int = -1
    served: Info | None = None
    recalls: tuple[WindowRecall, ...] = ()
    newest_event_age: float | None = None
    first_answer_seconds: float | None = None
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Rows of the log that are committed, refused or left out as duplicates."""
        return self.counts.events + self.counts.duplicates + self.counts.ignored + self.dead


def mean_recall(recalls: Sequence[WindowRecall], kind: str, k: int, last: int = _RECENT) -> float | None:
    """Return a recall's mean over the newest windows that have it, weighted by their examples."""
    found = [(getattr(recall, kind)[k], _examples(recall, kind)) for recall in recalls if k in getattr(recall, kind)]
    total = sum(examples for _, examples in found[-last:])
    return sum(value * examples for value, examples in found[-last:]) / total if total else None


def _examples(recall: WindowRecall, kind: str) -> int:
    return int(getattr(recall.examples, "model" if kind == "index" else kind))
