"""The settings of the pipeline."""

from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from contracts import FeatureNames, Label, columns
from contracts.models import FrozenModel

__all__ = ["LogColumns", "PipelineConfig", "SketchConfig", "TimestampUnit"]

TimestampUnit = Literal["auto", "s", "ms", "us", "rfc3339"]
Meaning = Literal["positive", "negative", "ignore"]


class LogColumns(FrozenModel):
    """What the log calls each field; optional fields may be absent from it."""

    user_id: str = Field(default=columns.USER_ID, min_length=1, description="user id (required)")
    item_id: str = Field(default=columns.ITEM_ID, min_length=1, description="item id (required)")
    timestamp: str = Field(default=columns.TIMESTAMP, min_length=1, description="event time (required)")
    event_id: str = Field(default=columns.EVENT_ID, min_length=1, description="unique id of the event (optional)")
    event_type: str = Field(default=columns.EVENT_TYPE, min_length=1, description="kind of event (optional)")
    weight: str = Field(default=columns.WEIGHT, min_length=1, description="weight of the event (optional)")
    attribution_token: str = Field(
        default=columns.ATTRIBUTION_TOKEN, min_length=1, description="token of the answer that led to it (optional)"
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        fields: dict[str, str] = {}
        for field, name in self.model_dump().items():
            if name in fields:
                message = f"{fields[name]} and {field} are both read from {name!r}; each needs a field of its own"
                raise ValueError(message)
            fields[name] = field
        return self


class SketchConfig(FrozenModel):
    """The frequency estimators of each window, one of its items and one of its users.

    All windows of a store need the same one: a reader that adds them up refuses others.
    """

    kind: Literal["count_min", "exact"] = Field(
        default="count_min",
        description="count_min: bounded memory, upper bounds; exact: true counts, 34 to 68 bytes per id",
    )
    width: int = Field(default=1 << 16, ge=2, description="count_min: cells per row, a power of two")
    depth: int = Field(default=4, ge=1, le=16, description="count_min: rows")
    conservative: bool = Field(
        default=True,
        description="count_min: conservative update, smaller error; false: linear, supports subtraction",
    )

    @field_validator("width")
    @classmethod
    def _power_of_two(cls, width: int) -> int:
        if width & (width - 1):
            lower = 1 << (width.bit_length() - 1)
            message = f"width is {width}, but must be a power of two: {lower} or {2 * lower}"
            raise ValueError(message)
        return width

    def parameters(self) -> dict[str, str | int | float | bool]:
        """Return the kind and its parameters, as they stand in manifests."""
        return self.model_dump(include={"kind"} if self.kind == "exact" else None)


class PipelineConfig(FrozenModel):
    """From the interaction log to committed windows.

    `window_seconds` and `user_shards` give the store its layout and cannot change once it holds windows.
    """

    log: str = Field(default="log", min_length=1, description="file, folder or glob of the log; a path or fsspec URL")
    columns: LogColumns = Field(default_factory=LogColumns, description="names of the fields in the log")
    item_features: FeatureNames = Field(
        default=FeatureNames(), description="further fields of the log, about the item; the trainer learns from them"
    )
    timestamp_unit: TimestampUnit = Field(
        default="auto",
        description="unit of timestamps; auto: numbers by magnitude (below 1e11 s, below 1e14 ms, else us), "
        "strings as RFC 3339",
    )
    min_time: datetime = Field(default=datetime(1990, 1, 1, tzinfo=UTC), description="earliest valid event time")
    max_time: datetime | None = Field(
        default=None, description="latest valid event time, beside the arrival of its file"
    )
    clock_tolerance_minutes: float = Field(
        default=10.0,
        ge=0,
        description="how far event times may be ahead of their file's modification time, minutes of event time",
    )
    max_weight: float = Field(default=100.0, gt=0, description="largest valid weight of an event")
    event_types: dict[str, Meaning] = Field(
        default_factory=dict, description="what each event type means; empty: every event is positive"
    )
    unknown_event_type: Literal["dead_letter", "positive", "negative", "ignore"] = Field(
        default="dead_letter", description="what becomes of a type that event_types does not name"
    )
    window_seconds: int = Field(default=86_400, ge=1, description="length of a window, seconds of event time")
    allowed_lateness_seconds: int = Field(
        default=300,
        ge=0,
        description="how long a window stays open past its end, seconds of event time",
    )
    history_length: int = Field(default=50, ge=1, le=4096, description="items of history attached to each event")
    user_shards: int = Field(default=8, ge=1, le=65_536, description="user shards: files per window")
    secret_keys: bool = Field(
        default=False,
        description="hash the ids of a new store with a secret, so that nobody can construct two ids with the same key",
    )
    idle_seconds: float = Field(
        default=10.0, ge=0, description="follow: commit open windows after this many seconds without new input"
    )
    poll_seconds: float = Field(default=0.5, gt=0, description="follow: seconds between checks of the log")
    chunk_bytes: int = Field(
        default=8 << 20, ge=1, description="size of the pieces in which the log is read, approximately, bytes"
    )
    chunk_rows: int = Field(default=1 << 16, ge=1, description="largest number of rows of a piece of gzip or Parquet")
    run_bytes: int = Field(
        default=1 << 28,
        ge=1,
        description="bytes of new files that one run may read, compressed ones counted tenfold; bounds its memory",
    )
    sketch: SketchConfig = Field(default_factory=SketchConfig, description="frequency sketches of each window")
    runner: str = Field(default="FnApiRunner", min_length=1, description="name of the Beam runner")
    runner_options: tuple[str, ...] = Field(default=(), description="additional Beam options, such as --parallelism=4")
    metrics_host: str = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9101, ge=0, le=65_535, description="port of /metrics; 0: any free port")

    @field_validator("min_time", "max_time")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value

    @model_validator(mode="after")
    def _features_apart(self) -> Self:
        for field, name in self.columns.model_dump().items():
            if name in self.item_features.all:
                raise ValueError(f"item_features names {name!r}, which is read as {field} already")
        return self

    @property
    def window_ms(self) -> int:
        """Length of a window in milliseconds of event time."""
        return 1000 * self.window_seconds

    def labels(self) -> dict[str, Label]:
        """Return `event_types` as labels."""
        return {name: Label[meaning.upper()] for name, meaning in self.event_types.items()}
