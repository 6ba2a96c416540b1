"""The monitor process: follows committed windows and measures each before the served model is trained on it.

It only reads, and asks the server small batches: nothing waits for it. Where the trainer is faster, answers do not
count and are reported as skipped.
"""

import logging
import signal
import threading
import time
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector

from contracts import BundleLog, Store, WindowLog, WindowManifest
from contracts.exposition import exposed
from serving.client import Info, RetrievalClient, RetrievalError
from serving.cost import exact_query_cost
from serving.errors import NoBundleError
from serving.monitor.config import MonitorConfig
from serving.monitor.freshness import Coverage, seconds_to_servable
from serving.monitor.metrics import MonitorMetrics
from serving.monitor.popularity import Popularity
from serving.monitor.recall import Example, Tally, ask, sample
from serving.monitor.results import Examples, Freshness, WindowRecall, load, recorded, save
from serving.problems import Problems

__all__ = ["LimitsError", "Monitor", "monitor"]

log = logging.getLogger(__name__)


class LimitsError(ValueError):
    """The monitor is set to ask for more than the server answers."""


def monitor(store: Store, config: MonitorConfig) -> None:
    """Follow windows and measure until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    with exposed(registry, config.metrics_host, config.metrics_port) as where:
        log.info("ready: asking %s, metrics on %s", config.target, where)
        with RetrievalClient(config.target, config.timeout_seconds) as client:
            follower = Monitor(store, config, client, MonitorMetrics(registry))
            while not stop.is_set():
                follower.step(stop)
                stop.wait(config.poll_seconds)
    log.info("stopped")


@dataclass
class Monitor:
    """Measures every window once, in commit order; a restart continues after the last one recorded in the store."""

    store: Store
    config: MonitorConfig
    client: RetrievalClient
    metrics: MonitorMetrics
    _last: int = field(default=-1, init=False)
    _trained: dict[str, int | None] = field(default_factory=dict, init=False)
    _early: dict[int, Freshness] = field(default_factory=dict, init=False)
    _measured: int | None = field(default=None, init=False)
    _problems: Problems = field(default_factory=lambda: Problems(log), init=False)

    def __post_init__(self) -> None:
        self.windows = WindowLog(self.store)
        self.popularity = Popularity(self.config.popularity_half_life_seconds)
        self.coverage = Coverage(self.windows)

    def step(self, stop: threading.Event | None = None) -> int:
        """Measure what has been committed since the last step, until `stop` is set; return the number of windows.

        What fails (the server is away, a file is damaged, the store cannot be read) is logged once and tried again at
        the next step. Raises `LimitsError` alone.
        """
        before = self._last
        try:
            self._step(stop or threading.Event())
            self._problems.over()
        except LimitsError:
            raise
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self.metrics.errors.inc()
            if isinstance(error, RetrievalError) and error.reason == NoBundleError.reason:
                self.coverage.nothing_served()
            # A server that has not answered yet is, as a rule, still starting.
            starting = self._last < 0 and isinstance(error, RetrievalError)
            message = f"waiting after commit {self._last}"
            self._problems.report(error, message, level=logging.INFO if starting else logging.WARNING)
        return self._last - before

    def _resume(self) -> int:
        """Find out, once, up to which window there are results."""
        if self._measured is None:
            results = recorded(self.store)
            self.coverage.reported = max((r.sequence for r in results if r.freshness), default=-1)
            self._measured = max((result.sequence for result in results), default=-1)
            self.metrics.sequence.set(self._measured)
        return self._measured

    def _step(self, stop: threading.Event) -> None:
        measured = self._resume()
        self._report_freshness(self._info())
        for manifest in self.windows.committed(after=self._last):
            if stop.is_set():
                return
            if manifest.sequence > measured:
                self._measure(manifest)
            self.popularity.add(self.windows, manifest)
            self._last = manifest.sequence
            self._report_freshness(self._info())

    def _info(self) -> Info:
        info = self.client.info()
        config = self.config
        if max(config.k) > info.limits["max_k"] or config.queries_per_request > info.limits["max_queries"]:
            raise LimitsError(
                f"the server answers up to {info.limits['max_queries']} queries of k up to {info.limits['max_k']}: "
                f"lower monitor.queries_per_request = {config.queries_per_request} or monitor.k = {config.k}"
            )
        return info

    def _measure(self, manifest: WindowManifest) -> None:
        config = self.config
        popular = self.popularity.top(max(config.k))
        self.popularity.name(self.windows, manifest)
        examples = sample(self.windows, manifest, self.popularity.ids, config.examples_per_window, config.seed)
        tally = self._ask(manifest, examples)
        for example in examples if popular else ():
            for k in config.k:
                tally.add("popularity", k, float(example.key in popular[:k]))
        early = self._early.pop(manifest.sequence, None)
        result = _result(manifest, tally, len(examples)).model_copy(update={"freshness": early})
        save(self.store, result)
        self.metrics.measured(result)
        log.info("window %s: model %s, served %s, popularity %s", *_summary(result))

    def _ask(self, manifest: WindowManifest, examples: list[Example]) -> Tally:
        """Ask about a window, unless the served bundle was trained on it: then no request is spent."""
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

    def _queries(self, examples: list[Example], info: Info) -> int:
        """Return how many queries to put into a request: exact search in a large catalogue is expensive."""
        longest = max((len(example.history) for example in examples), default=0)
        each = exact_query_cost(longest, 2 * max(self.config.k), info.items)
        return max(1, min(self.config.queries_per_request, int(info.limits["max_cost"] / each)))

    def _unseen_by(self, version: str, sequence: int) -> str | None:
        """Return why answers of a bundle about a window do not count; None when they do."""
        if version not in self._trained:
            try:
                self._trained[version] = BundleLog(self.store).manifest(version).trained_sequence
            except FileNotFoundError:
                self._trained[version] = None
        trained = self._trained[version]
        if trained is None:
            return "retired"
        return "trained" if trained >= sequence else None

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


def _result(manifest: WindowManifest, tally: Tally, sampled: int) -> WindowRecall:
    return WindowRecall(
        sequence=manifest.sequence,
        window=str(manifest.name),
        measured_at=time.time(),
        bundle_versions=tuple(sorted(tally.versions)),
        examples=Examples(
            sampled=sampled,
            model=tally.count("model"),
            served=tally.count("served"),
            popularity=tally.count("popularity"),
            skipped=dict(tally.skipped),
        ),
        index=tally.mean("index"),
        model=tally.mean("model"),
        served=tally.mean("served"),
        popularity=tally.mean("popularity"),
    )


def _summary(result: WindowRecall) -> tuple[str, ...]:
    def short(values: dict[int, float]) -> str:
        return " ".join(f"@{k}={value:.3f}" for k, value in values.items()) or "-"

    return result.window, short(result.model), short(result.served), short(result.popularity)
