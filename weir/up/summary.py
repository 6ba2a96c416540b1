"""The results of a demo run (`weir up --once`): collect, check and print them."""

from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.request import urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field
from rich.console import Console
from rich.table import Table

from weir.config import Settings
from weir.contracts import Store
from weir.contracts.base.models import FrozenModel
from weir.contracts.bundles.variants import log_of_version
from weir.interact import Change
from weir.serving.errors import BundleVersionNotLoadedError
from weir.serving.monitor.results import Freshness, mean_recall, recent_cases, recorded
from weir.text import plain
from weir.up.ports import metrics_url
from weir.up.status import Status
from weir.verdict import SMALL_LOG, too_small, wilson

__all__ = ["DemoSummary", "print_summary", "requests_by_code", "summarise"]


_PRECONDITION: Final = "FailedPrecondition"
_K: Final = 20
"""The k of recall@k."""
_BARS: Final = " ▁▂▃▄▅▆▇█"


class Recalls(FrozenModel):
    """Recall@k, means over the newest windows; None if it could not be measured."""

    k: int
    cases: int = Field(description="events on which model and popularity were compared")
    index: float | None = Field(description="approximate search against exact search")
    model: float | None = Field(description="exact search through the server, next events before training")
    served: float | None = Field(description="as a product would show it, without items already seen")
    popularity: float | None = Field(description="the items most popular before the window")
    trainer: float | None = Field(description="measured by the trainer over all items, before training")
    trainer_popularity: float | None = Field(description="the baseline on the same events")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the model's recall (Wilson); None if the recall could not be measured."""
        if self.model is None or not self.cases:
            return None
        return wilson(self.model, self.cases)


class DemoSummary(FrozenModel):
    """The results of one run of `weir up --once`."""

    rows: int = Field(description="rows of the log that are committed, refused or left out as duplicates")
    events: int = Field(description="distinct valid events committed")
    dead: int
    duplicates: int
    late: int = Field(description="events that arrived after their window was committed")
    windows: int = Field(description="panes, late ones included")
    bundles: int = Field(description="bundles swapped in by the server")
    recalls: Recalls
    servable_seconds: tuple[float, ...] = Field(
        description="from event to servable: 21 quantiles over all events, from the shortest to the longest"
    )
    click_seconds: float | None = Field(description="from a click to a changed answer")
    requests: dict[str, int] = Field(description="Retrieve calls by gRPC code")
    restarts: dict[str, int] = Field(description="processes that had to be restarted")
    peak_memory_bytes: int = Field(description="all processes together")
    first_answer_seconds: float | None
    seconds: float

    @property
    def is_small(self) -> bool:
        """Whether the log is too small to judge the model."""
        return self.events < SMALL_LOG

    @property
    def failures(self) -> list[str]:
        """A sentence for each check of the run that failed."""
        failed = {code: count for code, count in self.requests.items() if code != "OK"}
        found = [f"{count} requests failed with {code}" for code, count in failed.items()]
        if not self.requests.get("OK"):
            found.append("no request was answered")
        if self.is_small:
            return found
        if self.click_seconds is None:
            found.append("the answer did not change after the click")
        model, popularity = self.recalls.model, self.recalls.popularity
        if model is None or popularity is None:
            found.append("no recall was measured through the server")
        elif model < popularity or model == popularity < 1:
            found.append(f"the model's recall {model:.3f} is not above popularity's {popularity:.3f}")
        return found


def summarise(
    store: Store,
    settings: Settings,
    status: Status,
    change: Change | None,
    restarts: dict[str, int],
    *,
    peak_memory: int,
    seconds: float,
) -> DemoSummary:
    """Collect the results at the end of a demo, while its processes are still running."""
    metrics = _scrape(metrics_url(settings, "serving"))
    # Read again: the monitor adds freshness to earlier results.
    fresh = [recall.freshness for recall in recorded(store) if recall.freshness is not None]
    version = status.newest_bundle
    newest = log_of_version(store, version).manifest(version).evaluation if version else {}
    recalls = {kind: mean_recall(status.recalls, kind, _K) for kind in ("index", "model", "served", "popularity")}
    return DemoSummary(
        rows=status.read,
        events=status.counts.events,
        dead=status.dead,
        duplicates=status.counts.duplicates,
        late=status.counts.late,
        windows=status.windows,
        bundles=round(sum(value for name, _, value in metrics if name == "weir_bundle_swaps_total")),
        recalls=Recalls(
            k=_K,
            cases=recent_cases(status.recalls, "model", _K),
            **recalls,
            trainer=newest.get(f"recall@{_K}"),
            trainer_popularity=newest.get(f"popularity_recall@{_K}"),
        ),
        servable_seconds=_pooled(fresh),
        click_seconds=None if change is None else change.seconds,
        requests=requests_by_code(metrics),
        restarts={name: count for name, count in restarts.items() if count},
        peak_memory_bytes=peak_memory,
        first_answer_seconds=status.first_answer_seconds,
        seconds=seconds,
    )


def requests_by_code(metrics: list[tuple[str, dict[str, str], float]]) -> dict[str, int]:
    """Return gRPC code -> number of Retrieve calls, from (name, labels, value) samples; unused codes are left out.

    Calls that were refused because their pinned bundle was just replaced do not count: the comparison of variants pins
    two bundles, and skips the events at a swap.
    """
    found: Counter[str] = Counter()
    for name, labels, value in metrics:
        if name == "grpc_server_handled_total" and labels["grpc_method"] == "Retrieve":
            found[labels["grpc_code"]] += round(value)
        if name == "weir_requests_refused_total" and labels["reason"] == BundleVersionNotLoadedError.reason:
            found[_PRECONDITION] -= round(value)
    return dict(+found)


def _scrape(url: str) -> list[tuple[str, dict[str, str], float]]:
    with urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        text = answer.read().decode()
    return [
        (s.name, dict(s.labels), s.value) for family in text_string_to_metric_families(text) for s in family.samples
    ]


def print_summary(console: Console, summary: DemoSummary) -> None:
    """Print the results as a table."""
    recalls = summary.recalls
    failed = sum(count for code, count in summary.requests.items() if code != "OK")
    restarts = ", ".join(f"{name} {count}" for name, count in summary.restarts.items()) or "none"
    rows = {
        "log": f"{summary.rows:,} rows: {summary.events:,} events, {summary.dead} dead, "
        f"{summary.duplicates:,} duplicates; {summary.late:,} of the events came late",
        "panes": f"{summary.windows} committed, {summary.bundles} bundles served",
        f"recall@{recalls.k}, model": _against(recalls.model, recalls.popularity, recalls.interval)
        + (f"; {too_small(summary.events)}" if summary.is_small else ""),
        f"recall@{recalls.k}, served": _against(recalls.served, recalls.popularity),
        f"recall@{recalls.k}, index": _number(recalls.index) + " of what exact search finds",
        f"recall@{recalls.k}, trainer": _against(recalls.trainer, recalls.trainer_popularity),
        "event to servable": _spread(summary.servable_seconds),
        "click to new answer": f"{_number(summary.click_seconds, '.1f')} s",
        "requests": f"{summary.requests.get('OK', 0):,} answered, {failed} failed",
        "restarts": restarts,
        "memory, peak": f"{summary.peak_memory_bytes / 2**30:.2f} GiB, all processes together",
        "first answer": f"after {_number(summary.first_answer_seconds, '.1f')} s",
        "wall time": f"{summary.seconds:.0f} s",
    }
    table = Table(box=None, show_header=False, title="What happened", title_justify="left", title_style="bold")
    for name, value in rows.items():
        table.add_row(name, plain(value))
    console.print(table, highlight=False)


def _pooled(windows: Sequence[Freshness]) -> tuple[float, ...]:
    """Return 21 quantiles of the freshness over the events of all windows, seconds."""
    seconds = [second for window in windows for second in window.quantiles]
    weights = [window.events for window in windows for _ in window.quantiles]
    if not sum(weights):
        return ()
    return tuple(np.quantile(seconds, np.linspace(0, 1, 21), weights=weights, method="inverted_cdf").tolist())


def _spread(quantiles: Sequence[float]) -> str:
    """Return quantiles as text: p50, p95, the maximum, and a histogram with bars from 0 to the maximum."""
    if not quantiles:
        return "-"
    counts, edges = np.histogram(quantiles, bins=len(_BARS), range=(0, max(*quantiles, 1e-9)))
    bars = "".join(_BARS[int(count)] for count in np.ceil(counts / counts.max() * (len(_BARS) - 1)))
    p50, p95 = np.quantile(quantiles, (0.5, 0.95))
    return f"p50 {p50:.1f} s, p95 {p95:.1f} s, at most {edges[-1]:.1f} s   0 s {bars} {edges[-1]:.0f} s"


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def _against(value: float | None, baseline: float | None, interval: tuple[float, float] | None = None) -> str:
    times = f" ({value / baseline:.1f} times)" if value and baseline else ""
    within = f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    return f"{_number(value)}{within} against {_number(baseline)} by popularity{times}"
