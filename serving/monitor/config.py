"""The monitor's settings: one frozen, documented model."""

from typing import Annotated, Literal

from pydantic import Field

from weir.contracts.base.models import FrozenModel
from weir.runtime.listening import Host

__all__ = ["MonitorConfig"]


class MonitorConfig(FrozenModel):
    """What to measure on every window, and at what rate."""

    target: str = Field(default="127.0.0.1:50051", description="server to query, host:port")
    metrics_host: Host = Field(
        default="127.0.0.1", description="address of /metrics; 0.0.0.0 lets Prometheus scrape from elsewhere"
    )
    metrics_port: int = Field(default=9104, ge=0, le=65535, description="port of /metrics; 0 takes a free one")
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(10, 20, 100), min_length=1, description="cut-offs of recall, items"
    )
    examples_per_window: int = Field(
        default=500, ge=1, description="positive events sampled per window; 500 give recall to within 0.04"
    )
    queries_per_request: int = Field(default=16, ge=1, description="queries per request to the server")
    seed: int = Field(default=0, ge=0, description="seed of the samples; a window's sample depends on nothing else")
    popularity_half_life_seconds: float = Field(
        default=30 * 86400.0,
        gt=0,
        description="half-life of the popularity baseline's counts, seconds of event time",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="timeout of one request, seconds")
    served_delay_seconds: float = Field(
        default=30.0,
        gt=0,
        description="how long after its commit a window is joined with served lists, seconds; longer than "
        "serving.served.flush_seconds",
    )
    compare_alpha: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="probability, for each measure, that a challenger is ever called better or worse than the champion "
        "without being so (docs/serving.md)",
    )
    compare_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="a user's lists of so many seconds from the first one on are compared by their clicks, which are "
        "awaited as long again; longer than a window takes to be committed",
    )
    poll_seconds: float = Field(default=0.3, gt=0, description="interval between checks of the store, seconds")
    page_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port of the page that shows the path in a browser; 0 takes a free one; null: none",
    )
    page_host: Host = Field(
        default="127.0.0.1",
        description="address of the page; on any other than a loopback address it is read only, and shows no lines, "
        "users or queries",
    )
    page_shows_data: bool = Field(
        default=False, description="show lines of the log and answer queries on addresses other than loopback, too"
    )
    page_metrics: dict[Literal["pipeline", "trainer", "serving", "monitor"], str] = Field(
        default_factory=dict,
        description="URLs of the /metrics that the page reads, by stage; those left out are on this machine",
    )
