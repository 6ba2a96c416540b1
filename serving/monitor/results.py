"""What was measured on one window, kept in the store as ``monitor/<window>/<pane>.json``."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from contracts import Store, WindowManifest

__all__ = ["Examples", "Freshness", "WindowRecall", "load", "recorded", "save"]

_FOLDER: Final = "monitor"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Examples(_Model):
    """How many events stand behind the figures; those without a known item in their history only count as served."""

    sampled: int = 0
    model: int = Field(default=0, description="behind recall of model and index")
    served: int = Field(default=0, description="behind recall as served")
    popularity: int = Field(default=0, description="behind recall of the popularity baseline")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> events whose answer does not count")


class Freshness(_Model):
    """When the window's events could first be served; seconds from event to servable, in the observer's time."""

    bundle_version: str
    servable_at: float = Field(description="wall clock, seconds since 1970")
    seconds_min: float
    seconds_median: float
    seconds_max: float


class WindowRecall(_Model):
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
    popularity: dict[int, float]
    freshness: Freshness | None = None


def save(store: Store, result: WindowRecall) -> None:
    """Write a result atomically, over an earlier one of the same window."""
    store.write(f"{_FOLDER}/{result.window}.json", result.model_dump_json(indent=2).encode())


def load(store: Store, manifest: WindowManifest) -> WindowRecall | None:
    """Return the result of one window; None where it has not been measured."""
    try:
        return WindowRecall.model_validate_json(store.read(f"{_FOLDER}/{manifest.name}.json"))
    except FileNotFoundError:
        return None


def recorded(store: Store) -> list[WindowRecall]:
    """Return all results in commit order."""
    found = [WindowRecall.model_validate_json(store.read(name)) for name in store.glob(f"{_FOLDER}/*/*.json")]
    return sorted(found, key=lambda result: result.sequence)
