"""Settings of a log: names of its fields, meaning of its values, and the valid range."""

from datetime import UTC, datetime
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from weir.contracts import ITEMS_SCHEMA, FeatureNames, Label
from weir.contracts.base import columns
from weir.contracts.base.models import FrozenModel
from weir.contracts.interactions.interaction import MISSING_IDS

__all__ = ["LogColumns", "LogConfig", "TimestampUnit"]

TimestampUnit = Literal["auto", "s", "ms", "us", "ns", "rfc3339"]
Meaning = Literal["positive", "negative", "ignore"]


class LogColumns(FrozenModel):
    """Names of the fields in the log; optional fields may be absent."""

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
                raise ValueError(
                    f"{fields[name]} and {field} are both read from {name!r}; each needs a field of its own"
                )
            fields[name] = field
        return self


class LogConfig(FrozenModel):
    """Which log to read, and the rules for its rows: every reader accepts and refuses the same rows."""

    log: str = Field(
        default="log",
        min_length=1,
        description="file, folder or glob of the log, a path or fsspec URL; or kafka://host:port[,host:port]/topic",
    )
    columns: LogColumns = Field(default_factory=LogColumns, description="names of the fields in the log")
    missing_ids: tuple[str, ...] = Field(
        default=MISSING_IDS,
        description="texts that stand for no id: rows, and items of the catalogue, with one of them are refused; "
        "blanks around them and the case of ASCII letters do not count",
    )
    item_features: FeatureNames = Field(
        default=FeatureNames(), description="further fields of the log, about the item; the trainer learns from them"
    )
    user_features: FeatureNames = Field(
        default=FeatureNames(),
        description="further fields of the log, about the user or the moment, as they are with each event; the trainer "
        "learns from them, and a query may give them",
    )
    timestamp_unit: TimestampUnit = Field(
        default="auto",
        description="unit of timestamps; auto: numbers by magnitude (below 1e11 s, below 1e14 ms, below 1e17 us, else "
        "ns), texts as numbers or RFC 3339",
    )
    time_zone: str = Field(
        default="",
        description="zone of texts that name none, such as UTC or Europe/Berlin; empty: they are refused",
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

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value or "UTC")
        except (ZoneInfoNotFoundError, ValueError, OSError):
            message = f"time_zone is {value!r}, but must be the name of a zone, such as UTC or Europe/Berlin"
            raise ValueError(message) from None
        return value

    @field_validator("min_time", "max_time")
    @classmethod
    def _aware(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        return value

    @model_validator(mode="after")
    def _features_apart(self) -> Self:
        taken = {name: f"read as {field}" for field, name in self.columns.model_dump().items()}
        for kind, names in (("item_features", self.item_features.all), ("user_features", self.user_features.all)):
            if wrong := [name for name in names if name in taken]:
                raise ValueError(f"{kind} names {wrong[0]!r}, which is {taken[wrong[0]]} already")
            taken |= dict.fromkeys(names, f"named by {kind}")
        for name in self.item_features.all:
            if name in ITEMS_SCHEMA.names:
                raise ValueError(
                    f"item_features: {name!r} is a column of every window's items; a feature needs another name"
                )
        return self

    @property
    def features(self) -> FeatureNames:
        """The features of items and users together; may be twice the number that `FeatureNames` allows."""
        both = self.item_features, self.user_features
        return FeatureNames.model_construct(
            categorical=tuple(name for one in both for name in one.categorical),
            dense=tuple(name for one in both for name in one.dense),
        )

    def labels(self) -> dict[str, Label]:
        """Return `event_types` as labels."""
        return {name: Label[meaning.upper()] for name, meaning in self.event_types.items()}
