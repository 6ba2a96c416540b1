"""Compute the page's state and chart points from the store's state and the stages' metrics."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from weir.contracts.pooling import of_newest_windows
from weir.page.commits import NewestCommits
from weir.page.reader import Seen
from weir.page.scrape import Samples
from weir.serving.monitor.newest import mean_recall
from weir.serving.monitor.results import WindowRecall

__all__ = ["K", "Rates", "point_of", "recall_points", "state_of"]

K: Final = 20
_KINDS: Final = ("index", "model", "served", "popularity")
_NOTHING: Final = Samples()
_WINDOWS: Final = 5
"""Windows over which a recall is averaged: a single one, of a few events, would jump."""
_PANES: Final = 100
"""Panes among which these windows are found."""

_SPAN: Final = 15.0
"""Seconds over which rates are taken: events are counted when their window is committed, many at once."""

Scraped = Mapping[str, Samples | None]


def state_of(seen: Seen, commits: NewestCommits, scraped: Scraped) -> dict[str, Any]:
    """Return the current state as JSON; ages and durations are in seconds."""
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
    """Rates of counters, per second."""

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
    """Return the chart values for the current moment."""
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
    """Return, for each pane, the recalls over the newest windows up to it, all of their panes."""
    points = {}
    for place, recall in enumerate(recalls):
        before = ((one.window, one) for one in recalls[max(0, place + 1 - _PANES) : place + 1])
        newest = of_newest_windows(before, _WINDOWS)
        means = {kind: mean_recall(newest, kind, K, _WINDOWS) for kind in _KINDS}
        points[recall.sequence] = {"window": recall.sequence, **means}
    return points
