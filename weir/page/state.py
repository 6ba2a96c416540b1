"""The page's state at one moment, made from the store and the stages' metrics."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout
from prometheus_client.parser import text_string_to_metric_families

from weir.config import Settings
from weir.contracts.base.statistics import of_newest_windows
from weir.page.reader import NewestCommits, Seen
from weir.serving.monitor.results import WindowRecall, mean_recall
from weir.up.ports import metrics_url

__all__ = ["STAGES", "K", "Rates", "Samples", "addresses", "point_of", "recall_points", "scrape", "state_of"]

STAGES: Final = ("pipeline", "trainer", "serving", "monitor")
_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4 << 20

_SPAN: Final = 15.0
"""Seconds over which rates are taken, because many events are counted at once when their window is committed."""


@dataclass(frozen=True)
class Samples:
    """The metric samples of one stage: metric name -> (labels, value) pairs."""

    values: Mapping[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "Samples":
        """Parse Prometheus' text format; raises `ValueError`."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return cls(found)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric over samples with these labels; None without samples or if it is not finite."""
        matching = [value for have, value in self.values.get(name, ()) if labels.items() <= have.items()]
        total = sum(matching)
        return total if matching and math.isfinite(total) else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the samples above 0 of the metric `name`, keyed by the value of their label `label`."""
        return {have[label]: value for have, value in self.values.get(name, ()) if value > 0}


def addresses(settings: Settings) -> dict[str, str]:
    """Return the URL of each stage's metrics: from `monitor.page_metrics`, else on this machine."""
    return {stage: settings.monitor.page_metrics.get(stage) or metrics_url(settings, stage) for stage in STAGES}


async def scrape(session: ClientSession, urls: Mapping[str, str]) -> dict[str, Samples | None]:
    """Scrape all stages concurrently; None for a stage that does not answer."""
    found = await asyncio.gather(*(_one(session, url) for url in urls.values()))
    return dict(zip(urls, found, strict=True))


async def _one(session: ClientSession, url: str) -> Samples | None:
    try:
        async with session.get(url, timeout=ClientTimeout(_SECONDS)) as answer:
            answer.raise_for_status()
            data = await answer.content.read(_MOST_BYTES)
            while not answer.content.at_eof() and len(data) < _MOST_BYTES:
                data += await answer.content.read(_MOST_BYTES - len(data))
        return await asyncio.to_thread(Samples.of, data.decode(errors="replace"))
    except (ClientError, TimeoutError, OSError, ValueError):
        return None


K: Final = 20
_KINDS: Final = ("index", "model", "served", "popularity")
_NOTHING: Final = Samples()
_WINDOWS: Final = 5
"""Windows over which a recall is averaged, as the recall of a single window with few events fluctuates."""
_PANES: Final = 100
"""Newest panes among which the windows of a mean are looked for."""


Scraped = Mapping[str, Samples | None]


def state_of(seen: Seen, commits: NewestCommits, scraped: Scraped) -> dict[str, Any]:
    """Return the current state for JSON; ages and durations are in seconds."""
    served, log = seen.served, seen.log
    pipeline = scraped.get("pipeline") or _NOTHING
    newest = seen.clock.wall_time(round(1000 * served.max_event_time)) if served else None
    return {
        "time": time.time(),
        "answering": {stage: samples is not None for stage, samples in scraped.items()},
        "problems": seen.problems,
        "replayed": seen.clock.replayed(),
        "events": log.counts.events,
        "windows": log.cursor.sequence,
        "duplicates": log.counts.duplicates,
        "late": log.counts.late,
        "dead": log.dead,
        "dead_by_reason": pipeline.by("weir_pipeline_dead_letters_total", "reason"),
        "trained": seen.newest.trained_sequence + 1 if seen.newest else 0,
        "served": served
        and {
            "bundle": served.bundle_version,
            "items": served.items,
            "dimension": served.dimension,
            "index": served.index_type,
            "since": served.servable_time,
            "trained": served.trained_sequence + 1,
        },
        "newest_event_age": None if newest is None else time.time() - newest,
        "held": seen.held,
        "recall": {kind: mean_recall(seen.recalls, kind, K) for kind in _KINDS} | {"k": K},
        "seconds": _seconds(seen, commits, newest) | {"query": _mean_query(scraped.get("serving") or _NOTHING)},
    }


def _seconds(seen: Seen, commits: NewestCommits, newest_event: float | None) -> dict[str, float | None]:
    """Return the latest duration of each step, and the total from an event to its bundle being served."""
    bundle, served, loaded = seen.newest, seen.served, seen.loaded
    committed = None if bundle is None else commits.committed_at(bundle.trained_sequence)
    return {
        "window": commits.seconds_to_commit(seen.clock),
        "bundle": bundle.created_at - committed if bundle and committed else None,
        "server": served.servable_time - loaded.created_at if served and loaded else None,
        "total": served.servable_time - newest_event if served and newest_event is not None else None,
    }


def _mean_query(serving: Samples) -> float | None:
    """Return the mean seconds of a request since the server started."""
    name = "weir_request_stage_seconds"
    total, count = (serving.total(f"{name}_{part}", stage="total") for part in ("sum", "count"))
    return total / count if total is not None and count else None


@dataclass
class Rates:
    """Computes the rates of counters, per second."""

    _last: dict[str, deque[tuple[float, float]]] = field(default_factory=dict, init=False)

    def of(self, name: str, count: float | None, now: float) -> float | None:
        """Return the increase per second over the last 15 seconds; None at first and after a counter reset."""
        known = self._last.setdefault(name, deque())
        if count is None or (known and count < known[-1][1]):
            known.clear()
        if count is None:
            return None
        known.append((now, count))
        while len(known) > 2 and known[1][0] <= now - _SPAN:
            known.popleft()
        seconds = now - known[0][0]
        return (count - known[0][1]) / seconds if seconds > 0 else None


def point_of(state: Mapping[str, Any], scraped: Scraped, rates: Rates) -> dict[str, float | None]:
    """Return the values of the charts at the current moment, by series."""
    trainer, serving = scraped.get("trainer") or _NOTHING, scraped.get("serving") or _NOTHING
    # The loss gauge is 0 before the first step, which is not a loss.
    has_trained = bool(trainer.total("weir_trainer_windows_total"))
    return {
        "events_per_second": rates.of("events", state["events"], state["time"]),
        "requests_per_second": rates.of(
            "requests", serving.total("grpc_server_handled_total", grpc_method="Retrieve"), state["time"]
        ),
        "age": state["newest_event_age"],
        "loss": trainer.total("weir_trainer_loss") if has_trained else None,
        "log_q_error": trainer.total("weir_sketch_log_q_error_nats", scope="view"),
        "recommended": trainer.total("weir_trainer_recommended_popularity", k=str(K)),
    }


def recall_points(recalls: Sequence[WindowRecall]) -> dict[int, dict[str, Any]]:
    """Return sequence of a pane -> the recalls over the newest windows up to this pane."""
    points = {}
    for place, recall in enumerate(recalls):
        before = ((one.window, one) for one in recalls[max(0, place + 1 - _PANES) : place + 1])
        newest = of_newest_windows(before, _WINDOWS)
        means = {kind: mean_recall(newest, kind, K, _WINDOWS) for kind in _KINDS}
        points[recall.sequence] = {"window": recall.sequence, **means}
    return points
