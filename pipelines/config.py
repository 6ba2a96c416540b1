"""The settings of the pipeline."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from logs import LogConfig

__all__ = ["PipelineConfig", "SketchConfig"]


class SketchConfig(BaseModel):
    """The frequency estimators of each window, one of its items and one of its users.

    All windows of a store need the same one: a reader that adds them up refuses others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["count_min", "exact"] = Field(
        default="count_min",
        description="count_min: bounded memory, upper bounds; exact: true counts, 34 to 68 bytes per id",
    )
    width: int = Field(default=1 << 16, ge=2, description="count_min: cells per row, a power of two")
    depth: int = Field(default=4, ge=1, le=16, description="count_min: rows")
    conservative: bool = Field(
        default=True, description="count_min: conservative update, of smaller error; false: linear, may be subtracted"
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
        """Return the kind and its parameters, as manifests name them."""
        return self.model_dump(include={"kind"} if self.kind == "exact" else None)


class PipelineConfig(LogConfig):
    """From the interaction log to committed windows.

    `window_seconds` and `user_shards` give the store its layout and cannot change once it holds windows.
    """

    window_seconds: int = Field(default=86_400, ge=1, description="length of a window, seconds of event time")
    allowed_lateness_seconds: int = Field(
        default=300, ge=0, description="how long a window stays open behind the newest event, seconds of event time"
    )
    history_length: int = Field(default=50, ge=1, le=4096, description="items of history attached to each event")
    user_shards: int = Field(default=8, ge=1, le=65_536, description="user shards: files per window")
    secret_keys: bool = Field(
        default=False,
        description="a new store hashes ids with a secret of its own, so that nobody can choose two ids of one key",
    )
    idle_seconds: float = Field(
        default=10.0, ge=0, description="follow: commit open windows after this many seconds without new input"
    )
    poll_seconds: float = Field(default=0.5, gt=0, description="follow: seconds between looks at the log")
    chunk_bytes: int = Field(
        default=8 << 20, ge=1, description="the log is read in pieces of at most about this many bytes"
    )
    chunk_rows: int = Field(
        default=1 << 16, ge=1, description="gzip and Parquet are read in pieces of at most this many rows"
    )
    run_bytes: int = Field(
        default=1 << 28,
        ge=1,
        description="bytes of new files that one run may read, compressed ones counted tenfold; bounds its memory",
    )
    sketch: SketchConfig = Field(default_factory=SketchConfig, description="frequency sketches of each window")
    runner: str = Field(default="FnApiRunner", min_length=1, description="Beam runner, always named")
    runner_options: tuple[str, ...] = Field(default=(), description="further Beam options, such as --parallelism=4")
    metrics_host: str = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9101, ge=0, le=65_535, description="port of /metrics; 0: any free port")

    @property
    def window_ms(self) -> int:
        """Length of a window in milliseconds of event time."""
        return 1000 * self.window_seconds
