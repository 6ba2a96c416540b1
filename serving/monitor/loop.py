"""The monitor process: follows committed windows and measures each before the served model is trained on it.

It only reads, and asks the server in small batches, so no stage waits for it. Answers of a bundle already trained on
the window do not count, and are reported as skipped.
"""

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import takewhile
from typing import Final

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, ProcessCollector

from weir.contracts import CommitLog, CorruptArtefactError, EventClock, RetiredError, Store, WindowLog, WindowManifest
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.commit_log import LogMismatchError
from weir.contracts.commits.retention_horizon import MonitorPlace
from weir.runtime.log_once import LogOnce
from weir.runtime.metrics_server import exposed
from weir.runtime.stopping import ended_by_signals
from weir.serving.access_config import ClientConfig
from weir.serving.client import Info, RetrievalClient, RetrievalError
from weir.serving.errors import NoBundleError
from weir.serving.monitor.click_follower import ClickFollower
from weir.serving.monitor.comparison import Comparing, Contest
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.metrics import AttributionMetrics, MonitorMetrics, VariantMetrics
from weir.serving.monitor.recall import (
    Example,
    Popularity,
    Tally,
    ask,
    is_of_log,
    is_recorded,
    manifest_of,
    place_in,
    result_of,
    sample,
    summary_of,
)
from weir.serving.monitor.results import AgeHits, Freshness, ages_of, load, save
from weir.serving.search.cost import exact_query_cost
from weir.serving.search.queries import values_in

__all__ = ["Coverage", "LimitsError", "Monitor", "monitor", "seconds_to_servable"]

log = logging.getLogger(__name__)

_QUANTILES = np.linspace(0, 1, 100)
_SUMMARY = np.linspace(0, 1, 21)

_BUNDLES: Final = 64
_WINDOWS_BETWEEN_SAVES: Final = 64
_SECONDS_BETWEEN_SAVES: Final = 600.0
"""Popularity is stored after this many windows, and at the latest this long after the last save."""


@dataclass
class Coverage:
    """Tells which windows each newly served bundle is the first to cover; a bundle covers the windows it learned from.

    `reported` is the last window that was reported before a restart. The windows of the first bundle that is seen were
    servable before the monitor started and are not reported, unless the server was seen without a bundle before.
    """

    windows: WindowLog
    reported: int = -1
    _covered: int | None = field(default=None, init=False)

    def nothing_served(self) -> None:
        """Record that the server has no bundle."""
        if self._covered is None:
            self._covered = self.reported

    def newly_covered(self, info: Info) -> list[WindowManifest]:
        """Return the windows that the served bundle covers and earlier ones did not, in commit order."""
        before, self._covered = (
            self._covered,
            max(info.trained_sequence, -1 if self._covered is None else self._covered),
        )
        # Commits after the served ones are not read: a server may stay far behind for long.
        if before is None or before == self._covered:
            return []
        return list(takewhile(self._is_covered, self.windows.follow(self.windows.left(before))))

    def _is_covered(self, manifest: WindowManifest) -> bool:
        return self._covered is not None and manifest.sequence <= self._covered


def seconds_to_servable(
    store: Store, windows: WindowLog, manifest: WindowManifest, info: Info
) -> tuple[npt.NDArray[np.float64], Freshness]:
    """Return 100 quantiles of the seconds from a window's events until the bundle was servable, and their summary.

    Seconds are wall-clock time: a replay at ten times the speed divides them by ten (`EventClock`).
    """
    clock = EventClock.of(store)
    times = windows.all_examples(manifest, [columns.TIMESTAMP])[columns.TIMESTAMP].to_numpy()
    chosen = np.quantile(times, _QUANTILES) if len(times) else np.empty(0)
    seconds = np.array([info.servable_time - clock.wall_time(round(ms)) for ms in chosen])
    quantiles = np.quantile(seconds, _SUMMARY).tolist() if len(seconds) else [0.0] * len(_SUMMARY)
    return seconds, Freshness(
        bundle_version=info.bundle_version,
        servable_at=info.servable_time,
        seconds_min=quantiles[0],
        seconds_median=quantiles[len(quantiles) // 2],
        seconds_max=quantiles[-1],
        quantiles=tuple(quantiles),
        events=len(times),
    )


class LimitsError(ValueError):
    """The monitor's settings ask for more than the server's limits allow."""


def monitor(
    store: Store, config: MonitorConfig, client_config: ClientConfig | None = None, contest: Contest | None = None
) -> None:
    """Measure committed windows, join clicks and show metrics until SIGTERM or SIGINT.

    `client_config` has TLS and token settings. `contest` names the variants: a challenger is compared with the
    champion.
    """
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    with ended_by_signals() as stop, exposed(registry, config.metrics_host, config.metrics_port) as where:
        log.info("ready: asking %s, metrics on %s", config.target, where)
        with RetrievalClient(config.target, config.timeout_seconds, client_config) as client:
            comparing = Comparing(store, config, contest or Contest(), VariantMetrics(registry))
            follower = Monitor(store, config, client, MonitorMetrics(registry), comparing)
            clicks = ClickFollower(
                store, config.served_delay_seconds, AttributionMetrics(registry), comparing, config.compare_seconds
            )
            while not stop.is_set():
                follower.step(stop)
                clicks.step()
                stop.wait(config.poll_seconds)
    log.info("stopped")


@dataclass
class Monitor:
    """Measures recall on every window once, in commit order; a restart continues after the last recorded one."""

    store: Store
    config: MonitorConfig
    client: RetrievalClient
    metrics: MonitorMetrics
    comparing: Comparing | None = None
    _last: int = field(default=-1, init=False)
    _taken: int = field(default=0, init=False)
    _early: dict[int, Freshness] = field(default_factory=dict, init=False)
    _place: MonitorPlace | None = field(default=None, init=False)
    _saved_at: float = field(default_factory=time.monotonic, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log, (RetrievalError,)), init=False)

    def __post_init__(self) -> None:
        self.windows = WindowLog(self.store)
        self.popularity = Popularity(self.config.popularity_half_life_seconds)
        self.coverage = Coverage(WindowLog(self.store))
        # Served answers come from few bundles, and the manifest is needed for every example.
        self._bundle = lru_cache(_BUNDLES)(partial(manifest_of, self.store))
        self._is_of_log = lru_cache(_BUNDLES)(partial(is_of_log, CommitLog(self.store)))

    def step(self, stop: threading.Event | None = None) -> int:
        """Measure the windows committed since the last step, until `stop` is set; return their number.

        Failures (server away, damaged file, unreadable store) are logged once and retried at the next step. Raises only
        `LimitsError`.
        """
        before = self._taken
        try:
            self._step(stop or threading.Event())
            self._once.succeeded()
        except LimitsError:
            raise
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.metrics.errors.inc()
            if isinstance(error, RetrievalError) and error.reason == NoBundleError.reason:
                self.coverage.nothing_served()
            # A server that has not answered yet is usually still starting.
            starting = not self._taken and isinstance(error, RetrievalError)
            message = f"waiting after commit {self._last}"
            self._once.failed(error, message, level=logging.INFO if starting else logging.WARNING)
        return self._taken - before

    def _resume(self) -> MonitorPlace:
        """Return the monitor's progress; at first, read it and the stored popularity from the store."""
        if self._place is None:
            place = place_in(self.store)
            self._require_log(place)
            self.coverage.reported = place.reported
            self.popularity = Popularity.load(self.store, self.config.popularity_half_life_seconds)
            if self.popularity.sequence > place.measured:
                # Its counts include windows that are still to be measured.
                self.popularity = Popularity(self.config.popularity_half_life_seconds)
            # Windows counted in popularity are not read again, except to measure them.
            self._last = self.windows.left(self.popularity.sequence)
            self._place = place.model_copy(update={"counted": self.popularity.sequence})
            self.metrics.sequence.set(place.measured)
            for pane in self.windows.newest(_WINDOWS_BETWEEN_SAVES):
                self._show_known(pane)
        return self._place

    def _show_known(self, pane: WindowManifest) -> None:
        """Show the stored result of a pane, so that means cover earlier panes right after a restart."""
        try:
            known = load(self.store, pane)
        except CorruptArtefactError as error:
            log.warning("left out of the recalls that are shown: %s", error)
            return
        if known is not None:
            self.metrics.known(known)

    def _require_log(self, place: MonitorPlace) -> None:
        """Raise `LogMismatchError` unless the results belong to the windows of this commit log."""
        try:
            CommitLog(self.store).require(self.store.path("monitor"), place.measured, place.commit)
        except LogMismatchError as error:
            remedy = "remove monitor/, and all windows that the log holds are measured again, as far as they can be"
            raise LogMismatchError(error.reader, f"{error.problem}; {remedy}", error.reason) from None

    def _step(self, stop: threading.Event) -> None:
        self._resume()
        self._report_freshness(self._info())
        while panes := self._next():
            for manifest in panes:
                if stop.is_set():
                    return
                self._process(manifest)
                self._report_freshness(self._info())
        self._keep_popularity()

    def _next(self) -> tuple[WindowManifest, ...]:
        try:
            return self.windows.next(self._last)
        except RetiredError as error:
            log.warning("windows are not measured: %s", error)
            self._last = error.horizon.sequence - 1
            return self.windows.next(self._last)

    def _process(self, manifest: WindowManifest) -> None:
        """Measure a window unless it has a result, then count it in popularity."""
        place = self._resume()
        if manifest.sequence > place.measured and not is_recorded(self.store, manifest):
            self._measure(manifest)
        self.popularity.add(self.windows, manifest)
        self._last = manifest.sequence
        self._taken += 1
        if manifest.sequence > place.measured:
            self._note(measured=manifest.sequence, commit=self.windows.last)
        self._keep_popularity()

    def _keep_popularity(self) -> None:
        """Store the popularity counts if enough windows or time have passed since the last save."""
        new = self.popularity.sequence - self._resume().counted
        long_ago = time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES
        if new >= _WINDOWS_BETWEEN_SAVES or (new and long_ago):
            self.popularity.save(self.store)
            self._saved_at = time.monotonic()
            self._note(counted=self.popularity.sequence)

    def _note(self, **changes: int | CommitRef | None) -> None:
        """Change fields of the monitor's progress, and store it if a value is new."""
        place = self._resume()
        if (new := place.model_copy(update=changes)) != place:
            new.write(self.store)
            self._place = new

    def _info(self) -> Info:
        """Return the server's info; raises `LimitsError` if its limits are too low for the settings."""
        info = self.client.info()
        config = self.config
        if max(config.k) > info.limits["max_k"] or config.queries_per_request > info.limits["max_queries"]:
            raise LimitsError(
                f"the server answers up to {info.limits['max_queries']} queries of k up to {info.limits['max_k']}: "
                f"lower monitor.queries_per_request = {config.queries_per_request} or monitor.k = {config.k}"
            )
        return info

    def _measure(self, manifest: WindowManifest) -> None:
        """Ask the server about a sample of a window's events, and store and show the result."""
        config = self.config
        popular = self.popularity.top(max(config.k))
        self.popularity.name(self.windows, manifest)
        examples = sample(self.windows, manifest, self.popularity.ids, config.examples_per_window, config.seed)
        tally = self._ask(manifest, examples)
        self._compare(manifest, examples)
        for example in examples if popular else ():
            for k in config.k:
                tally.add("popularity", k, float(example.key in popular[:k]))
        early = self._early.pop(manifest.sequence, None)
        more = {"freshness": early, "ages": self._ages(manifest, tally)}
        result = result_of(manifest, tally, len(examples)).model_copy(update=more)
        save(self.store, result)
        self.metrics.measured(result)
        log.info("window %s: model %s, served %s, popularity %s", *summary_of(result))

    def _ask(self, manifest: WindowManifest, examples: list[Example]) -> Tally:
        """Ask the server about a window's examples; all are skipped if the served bundle was trained on the window."""
        info = self._info()
        reason = self._unseen_by(info.bundle_version, manifest.sequence)
        if reason is not None:
            tally = Tally()
            tally.skipped[reason] += len(examples)
            return tally
        return ask(
            self.client,
            examples,
            self.config.k,
            batch=self._queries(examples, info),
            most=info.limits["max_k"],
            unseen_by=lambda version: self._unseen_by(version, manifest.sequence),
        )

    def _compare(self, manifest: WindowManifest, examples: list[Example]) -> None:
        """Compare champion and challenger on a window's examples, if there is a challenger."""
        if self.comparing is not None:
            self.comparing.measure(
                manifest,
                examples,
                commit=self.windows.last,
                client=self.client,
                batch=partial(self._queries, examples),
                unseen_by=lambda version: self._unseen_by(version, manifest.sequence),
            )

    def _queries(self, examples: list[Example], info: Info) -> int:
        """Return the number of queries per request, within the server's limit of cost, as exact search is expensive."""
        longest = max((len(example.history) for example in examples), default=0)
        values = max((values_in(example.features) for example in examples), default=0)
        each = exact_query_cost(longest + values, 2 * max(self.config.k), info.items)
        most = min(self.config.queries_per_request, int(info.limits["max_cost"] / each))
        # A server of an earlier version has no such limit: it ignores features.
        if values and info.limits["max_feature_values"]:
            most = min(most, info.limits["max_feature_values"] // values)
        return max(1, most)

    def _unseen_by(self, version: str, sequence: int) -> str | None:
        """Return why answers of a bundle `version` about the window `sequence` do not count; None if they count."""
        bundle = self._bundle(version)
        if bundle is None:
            return "retired"
        if not self._is_of_log(version, bundle.trained_sequence, bundle.trained_commit):
            return "other_log"
        return "trained" if bundle.trained_sequence >= sequence else None

    def _ages(self, manifest: WindowManifest, tally: Tally) -> tuple[AgeHits, ...]:
        newest = [bundle.max_event_ms for _, version in tally.counted if (bundle := self._bundle(version))]
        times = [example.time_ms for example, _ in tally.counted]
        return ages_of(manifest, times, newest, {kind: tally.by_k(kind) for kind in ("served", "committed")})

    def _report_freshness(self, info: Info) -> None:
        for manifest in self.coverage.newly_covered(info):
            seconds, freshness = seconds_to_servable(self.store, self.windows, manifest, info)
            for value in seconds.tolist():
                self.metrics.freshness.observe(value)
            result = load(self.store, manifest)
            if result is None:
                self._early[manifest.sequence] = freshness
            else:
                save(self.store, result.model_copy(update={"freshness": freshness}))
            self._note(reported=manifest.sequence)
