"""What was measured on one window, kept in the store as ``monitor/<window>/<pane>.json``."""

import logging
from typing import Final, Literal

from pydantic import Field

from weir.contracts import CorruptArtefactError, Document, Store, WindowManifest
from weir.contracts.documents import read_document, write_document
from weir.serving.monitor.ages import AgeHits

__all__ = ["Examples", "Freshness", "WindowRecall", "load", "recorded", "save"]

log = logging.getLogger(__name__)

_FOLDER: Final = "monitor"


class Examples(Document):
    """How many events the metrics are means of; those without a known item in their history only count as served."""

    sampled: int = 0
    model: int = Field(default=0, description="behind recall of model and index")
    served: int = Field(default=0, description="behind recall as served")
    popularity: int = Field(default=0, description="behind recall of the popularity baseline")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> events whose answer does not count")


class Freshness(Document):
    """When the window's events could first be served; seconds from event to servable, in the observer's time."""

    bundle_version: str
    servable_at: float = Field(description="wall clock, seconds since 1970")
    seconds_min: float
    seconds_median: float
    seconds_max: float
    quantiles: tuple[float, ...] = Field(default=(), description="21 quantiles, from the shortest to the longest")
    events: int = Field(default=1, description="of the window, behind the quantiles")


class WindowRecall(Document):
    """Recall by cut-off; a kind without examples has no entry."""

    schema_version: Literal[1] = 1
    sequence: int
    window: str
    measured_at: float = Field(description="wall clock, seconds since 1970")
    bundle_versions: tuple[str, ...] = Field(description="the bundles whose answers count")
    examples: Examples
    index: dict[int, float]
    model: dict[int, float]
    served: dict[int, float]
    committed: dict[int, float] = Field(
        default_factory=dict, description="as served, with the histories that were committed before the window"
    )
    popularity: dict[int, float]
    ages: tuple[AgeHits, ...] = Field(
        default=(), description="served, by the age of the bundle; committed, by the age of the histories"
    )
    freshness: Freshness | None = None

    def cases(self, kind: str) -> int:
        """Return the events behind a recall."""
        behind = {"index": "model", "committed": "served"}.get(kind, kind)
        return int(getattr(self.examples, behind))


def save(store: Store, result: WindowRecall) -> None:
    """Write a result atomically, over an earlier one of the same window."""
    write_document(store, f"{_FOLDER}/{result.window}.json", result)


def load(store: Store, manifest: WindowManifest) -> WindowRecall | None:
    """Return the result of one window, None where it has not been measured; raises `CorruptArtefactError`."""
    try:
        return read_document(store, f"{_FOLDER}/{manifest.name}.json", WindowRecall)
    except FileNotFoundError:
        return None


def recorded(store: Store) -> list[WindowRecall]:
    """Return all results in commit order; a damaged one is left out with a warning: it must not stop the monitor."""
    found = []
    for name in store.glob(f"{_FOLDER}/*/*.json"):
        try:
            found.append(read_document(store, name, WindowRecall))
        except CorruptArtefactError as error:
            log.warning("left out: %s", error)
    return sorted(found, key=lambda result: result.sequence)
