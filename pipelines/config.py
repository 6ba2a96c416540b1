"""The settings of the pipeline."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from weir.contracts.base.models import FrozenModel
from weir.contracts.storage.remote_files import LocalCache
from weir.pipelines.kafka_config import KafkaConfig, Topic
from weir.readers import LogConfig, is_topic
from weir.runtime.listening import Host

__all__ = ["LIVE_WINDOW_SECONDS", "PipelineConfig", "SketchConfig"]

LIVE_WINDOW_SECONDS: Final = 10
"""Default window length for a log that is still being written (docs/store.md)."""
_DAY: Final = 86_400


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
            raise ValueError(f"width is {width}, but must be a power of two: {lower} or {2 * lower}")
        return width

    def parameters(self) -> dict[str, str | int | float | bool]:
        """Return the kind and its parameters as manifests record them."""
        return self.model_dump(include={"kind"} if self.kind == "exact" else None)


class PipelineConfig(LogConfig):
    """From the interaction log to committed windows.

    `window_seconds` and `user_shards` give the store its layout and cannot change once it holds windows.
    """

    kafka: KafkaConfig = Field(default_factory=KafkaConfig, description="for a log that is a Kafka topic")
    window_seconds: int | None = Field(
        default=None,
        ge=1,
        description="length of a window, seconds of event time; null: that of the store, or of a new store "
        f"{LIVE_WINDOW_SECONDS} for a topic and for files that are followed and begin less than a day ago, a day for "
        "others",
    )
    allowed_lateness_seconds: int = Field(
        default=5,
        ge=0,
        description="how long a window stays open past its end, seconds of event time; a later event makes a further "
        "pane of its window",
    )
    history_length: int = Field(default=50, ge=1, le=4096, description="items of history attached to each event")
    late_items: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="items kept of each user beyond history_length, so that late events get their true history",
    )
    seen_items: int = Field(
        default=1000,
        ge=1,
        description="newest items remembered of each user as seen, positives and negatives",
    )
    exposed_items: int = Field(
        default=0,
        ge=0,
        le=100,
        description="items kept with each positive that has an attribution token: items that were shown beside it and "
        "not chosen; 0: lists are not joined",
    )
    user_shards: int = Field(default=8, ge=1, le=65_536, description="user shards: files per window")
    secret_keys: bool = Field(
        default=False,
        description="hash the ids of a new store with a secret, so that ids cannot be crafted to share a key",
    )
    retention_days: float | None = Field(
        default=None,
        gt=0,
        description="days of event time after which windows retire once all readers are done with them; null: never",
    )
    erasure_days: float = Field(
        default=1.0,
        ge=0.05,
        description="days after which files that held forgotten users are removed; "
        "longer than any reader takes for a window",
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
        description="what the rows of one run may count, 256 bytes each and three times their own once decoded; a run "
        "takes 190 MB of memory and about 2.9 times as much",
    )
    cache_folder: str = Field(
        default="", description="where history files of an object store are kept; empty: in the temporary folder"
    )
    cache_bytes: int = Field(default=64 << 30, ge=1, description="size of this folder, bytes; the least used files go")
    sketch: SketchConfig = Field(default_factory=SketchConfig, description="frequency sketches of each window")
    runner: str = Field(default="FnApiRunner", min_length=1, description="name of the Beam runner")
    runner_options: tuple[str, ...] = Field(default=(), description="additional Beam options, such as --parallelism=4")
    metrics_host: Host = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9101, ge=0, le=65_535, description="port of /metrics; 0: any free port")

    @field_validator("log")
    @classmethod
    def _topic(cls, value: str) -> str:
        if is_topic(value):
            Topic.parse(value)
        return value

    @model_validator(mode="after")
    def _retires_closed_windows(self) -> Self:
        shortest = self.open_seconds
        if self.retention_days is not None and 86_400 * self.retention_days < shortest:
            raise ValueError(
                f"retention_days is {self.retention_days:g}, but windows stay open for {shortest / 86_400:g} days "
                "(window_seconds and allowed_lateness_seconds): retention_days must be at least that"
            )
        return self

    @model_validator(mode="after")
    def _fits_messages(self) -> Self:
        if self.kafka.format == "protobuf" and self.timestamp_unit not in {"auto", "ms"}:
            raise ValueError(
                f"timestamp_unit is {self.timestamp_unit}, but the messages have milliseconds (kafka.format protobuf): "
                "it must be auto or ms"
            )
        for kind, names in (("item_features", self.item_features.all), ("user_features", self.user_features.all)):
            if self.kafka.format == "protobuf" and names:
                raise ValueError(
                    f"{kind} names {', '.join(names)}, but the messages have none (kafka.format protobuf): name none, "
                    "or send json"
                )
        return self

    @property
    def kept_items(self) -> int:
        """The number of history items in a user record."""
        return self.history_length + self.late_items

    @property
    def cache(self) -> LocalCache:
        """The local cache for history files of an object store."""
        if not self.cache_folder:
            return LocalCache(limit=self.cache_bytes)
        return LocalCache(Path(self.cache_folder), self.cache_bytes)

    @property
    def window_ms(self) -> int:
        """Window length in milliseconds of event time; a day if `window_seconds` is not set."""
        return 1000 * (self.window_seconds or _DAY)

    @property
    def open_seconds(self) -> int:
        """How long a window stays open: its length plus the allowed lateness, seconds of event time."""
        return self.window_ms // 1000 + self.allowed_lateness_seconds
