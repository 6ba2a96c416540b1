"""The trainer's Prometheus metrics, exported by rank 0."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from weir.contracts import BundleManifest, EventClock
from weir.contracts.base.statistics import Pool
from weir.sketches import FrequencyEstimator, health
from weir.trainer.items.table import RowChanges
from weir.trainer.state.progress import Evaluation
from weir.trainer.step.step import StepResult

__all__ = ["TrainerMetrics"]

_STEP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_EXPORT_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SERVABLE_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0)
_MEASURED_AFTER: Final = 1 / 16
"""Share of new events after which the frequencies are measured again."""


@dataclass
class TrainerMetrics:
    """The trainer's Prometheus metrics, in their own registry unless one is given."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        ProcessCollector(registry=registry)
        self.examples = Counter("weir_trainer_examples", "Positive examples trained on.", registry=registry)
        self.unadmitted = Counter(
            "weir_trainer_unadmitted_examples", "Examples skipped: their item has no row yet.", registry=registry
        )
        self.hits = Counter(
            "weir_trainer_accidental_hits", "Negatives masked: the row's own items drawn again.", registry=registry
        )
        self.exposed = Counter(
            "weir_trainer_exposed_items",
            "Items shown beside a positive and not chosen, in windows taken in.",
            registry=registry,
        )
        self.windows = Counter("weir_trainer_windows", "Panes of windows trained on completely.", registry=registry)
        self.sequence = Gauge(
            "weir_trainer_window_sequence",
            "Number of the newest pane trained on, -1 before the first.",
            registry=registry,
        )
        self.loss = Gauge("weir_trainer_loss", "Mean loss of the newest step.", registry=registry)
        self.norm = Gauge(
            "weir_trainer_gradient_norm",
            "Norm of all gradients of the newest step, before clipping.",
            registry=registry,
        )
        self.clipped = Counter(
            "weir_trainer_clipped_steps",
            "Steps whose gradients were scaled down to the maximum norm.",
            registry=registry,
        )
        self.refused = Counter(
            "weir_trainer_refused_steps", "Steps skipped: loss or gradients were not finite.", registry=registry
        )
        self.step_seconds = Histogram(
            "weir_trainer_step_seconds", "Time of a step, by part.", ["part"], buckets=_STEP_BUCKETS, registry=registry
        )
        self.rank_seconds = Gauge(
            "weir_trainer_rank_step_seconds",
            "Mean time of a step on a rank, without what it waits for others.",
            ["rank", "node"],
            registry=registry,
        )
        self.rows = Gauge("weir_trainer_item_table_rows", "Items with a row.", registry=registry)
        self.admitted = Counter("weir_trainer_items_admitted", "Items given a row.", registry=registry)
        self.evicted = Counter("weir_trainer_items_evicted", "Items whose row was evicted.", registry=registry)
        self._add_evaluation(registry)
        self._add_bundles(registry)
        self._add_index(registry)
        self._add_sketches(registry)

    def _add_sketches(self, registry: CollectorRegistry) -> None:
        """Add metrics on the sketch of recent frequencies."""
        self._unmeasured = math.inf  # measure at the first update

        # The pipeline exports the same metrics of each window's own sketch, with another scope.
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"weir_sketch_{name}", text, ["scope"], registry=registry)

        self.sketches = {
            "fill": gauge("fill_ratio", "Share of cells in use, frequencies behind log Q."),
            "distinct": gauge("distinct_keys", "Distinct ids counted, estimated from the frequencies themselves."),
            "log_q_error": gauge(
                "log_q_error_nats", "Mean error of log Q over events that collisions cause, estimated from phantom ids."
            ),
        }

    def _add_evaluation(self, registry: CollectorRegistry) -> None:
        """Add metrics of prequential evaluation, by k."""

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, f"{text}, newest windows, macro over events.", ["k"], registry=registry)

        self._pool = Pool()

        self.evaluation = {
            "recall": gauge("weir_trainer_prequential_recall", "Recall of the model before it trains on a window"),
            "ndcg": gauge("weir_trainer_prequential_ndcg", "NDCG (ideal: the item first) before it trains on a window"),
            "popularity_recall": gauge("weir_trainer_popularity_recall", "Recall of the most popular items"),
            "popularity_ndcg": gauge("weir_trainer_popularity_ndcg", "NDCG of the most popular items"),
            "recommended_count": gauge("weir_trainer_recommended_popularity", "Decayed count of what it recommends"),
        }
        # Nats, the unit of log Q; promtool takes bits for misspelt bytes.
        self.novelty = gauge("weir_trainer_novelty_nats", "Self-information of what the model recommends")

    def _add_bundles(self, registry: CollectorRegistry) -> None:
        """Add metrics on exports, promotions and rollbacks of bundles."""
        self.bundle = Info("weir_bundle_exported", "The newest bundle exported.", registry=registry)
        self.max_event = Gauge(
            "weir_bundle_max_event_timestamp_seconds",
            "Newest event in training of the newest bundle.",
            registry=registry,
        )
        self.chain = Gauge("weir_trainer_bundle_chain", "Deltas since the newest complete bundle.", registry=registry)
        self.moved = Gauge(
            "weir_trainer_bundle_moved_ratio",
            "Items of the newest bundle that are new or off by more than the bound since they were last published.",
            registry=registry,
        )
        self.compared = Gauge(
            "weir_trainer_bundle_compared_ratio",
            "Items that rank 0 compared with what is published; 1: all, not only those changed since the last export.",
            registry=registry,
        )
        self.outcomes = Counter(
            "weir_bundle_exports",
            "Exports by outcome: promoted, held, pinned or failed.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("promoted", "held", "pinned", "failed"):
            self.outcomes.labels(outcome)
        self.pinned = Gauge(
            "weir_trainer_bundle_pinned", "1 while an operator's pin keeps bundles from promotion.", registry=registry
        )
        self.rollbacks = Counter(
            "weir_trainer_bundle_rollbacks",
            "Promoted bundles withdrawn after losing recall on events they had not been trained on.",
            registry=registry,
        )
        self.crowned = Counter(
            "weir_variant_promotions",
            "Challengers that are served to all since they were found better than the champion.",
            registry=registry,
        )
        self.export_seconds = Histogram(
            "weir_bundle_export_seconds",
            "Time to export a bundle, until it is published.",
            buckets=_EXPORT_BUCKETS,
            registry=registry,
        )
        self.servable = Histogram(
            "weir_bundle_event_to_servable_seconds",
            "Wall time from a bundle's newest event to its promotion.",
            buckets=_SERVABLE_BUCKETS,
            registry=registry,
        )

    def _add_index(self, registry: CollectorRegistry) -> None:
        """Add metrics on whether the kept lists of an IVF index still fit."""

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"weir_trainer_index_{name}", text, registry=registry)

        self.index = {
            "recall": gauge(
                "recall", "Share of the exact 100 best that the index finds, queries of the newest window."
            ),
            "unfit": gauge("unfit_ratio", "New and moved items that fit their list badly; .05 at training."),
            "repairs": gauge("repairs", "Local repairs of the lists since they were trained."),
            "trained_at": gauge("trained_timestamp_seconds", "When the lists were trained, Unix time."),
        }

    def ranks_stepped(self, nodes: Sequence[str], seconds: Sequence[float]) -> None:
        """Set the mean step time of each rank, and its node."""
        for rank, (node, own) in enumerate(zip(nodes, seconds, strict=True)):
            self.rank_seconds.labels(str(rank), node).set(own)

    def stepped(self, result: StepResult, examples: int) -> None:
        """Count a step on `examples` rows; for a refused step, only the refusal."""
        self.refused.inc(result.refused)
        if result.refused:
            return
        self.examples.inc(examples)
        self.hits.inc(result.accidental_hits)
        self.loss.set(result.loss)
        self.norm.set(result.norm)
        self.clipped.inc(result.clipped)
        for part, seconds in result.seconds.items():
            self.step_seconds.labels(part).observe(seconds)

    def ingested(self, changes: RowChanges, rows: int, unadmitted: int, exposed: int) -> None:
        """Count a window's changes to the item table, and the items shown beside its positives."""
        self.admitted.inc(len(changes.admitted))
        self.evicted.inc(len(changes.evicted))
        self.rows.set(rows)
        self.unadmitted.inc(unadmitted)
        self.exposed.inc(exposed)

    def frequencies_updated(self, frequencies: FrequencyEstimator, events: int) -> None:
        """Set the sketch metrics from the recent frequencies, after `events` more events.

        Measuring reads all cells of the sketch, so it is done only after a sixteenth of its events are new.
        """
        self._unmeasured += events
        if self._unmeasured < _MEASURED_AFTER * frequencies.total:
            return
        self._unmeasured = 0.0
        measured = health(frequencies)
        for name, gauge in self.sketches.items():
            gauge.labels("view").set(getattr(measured, name))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Add the evaluation of a pane, and set the evaluation metrics to the means over the newest windows."""
        for name, gauge in self.evaluation.items():
            for k, value in self._pooled(evaluation, name).items():
                gauge.labels(str(k)).set(value)
        for k, bits in self._pooled(evaluation, "novelty_bits").items():
            self.novelty.labels(str(k)).set(bits * math.log(2))

    def _pooled(self, evaluation: Evaluation, name: str) -> dict[int, float]:
        """Add a metric of an evaluation to the pool; return the means over the newest windows, by k."""
        self._pool.add(evaluation.window, name, getattr(evaluation, name), evaluation.events)
        return self._pool.means(name)

    def window_trained(self, sequence: int) -> None:
        """Count a finished window."""
        self.windows.inc()
        self.sequence.set(sequence)

    def exported(self, bundle: BundleManifest, seconds: float, clock: EventClock, *, pinned: bool = False) -> None:
        """Count an exported bundle; `pinned` if it was not promoted because another bundle is pinned."""
        self.export_seconds.observe(seconds)
        promoted = bundle.promoted and not pinned
        self.outcomes.labels("promoted" if promoted else "pinned" if bundle.promoted else "held").inc()
        facts = {"version": bundle.version, "window": bundle.trained_window, "index": bundle.index.type}
        self.bundle.info(facts | {"promoted": str(promoted).lower()})
        self.max_event.set(bundle.max_event_ms / 1000)
        self.chain.set(bundle.depth)
        self.moved.set(math.nan if bundle.moved is None else bundle.moved)
        for name, gauge in self.index.items():
            value = getattr(bundle.index.fit, name, None)
            gauge.set(math.nan if value is None else value)
        if promoted:
            self.servable.observe(max(bundle.created_at - clock.wall_time(bundle.max_event_ms), 0.0))
