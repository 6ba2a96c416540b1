import math

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from weir.sketches import CountMinSketch, health
from weir.trainer.items.table import RowChanges
from weir.trainer.state.progress import Evaluation
from weir.trainer.step.step import StepResult
from weir.trainer.stream.metrics import TrainerMetrics


def test_what_happens_is_told_under_stable_names() -> None:
    registry = CollectorRegistry()
    metrics = TrainerMetrics(registry)
    metrics.stepped(StepResult(0.5, 3, stop=False, seconds={"gradients": 0.2, "update": 0.1}), 30)
    metrics.stepped(StepResult(0.5, 0, stop=False, seconds={}, norm=2.0, clipped=True), 0)
    metrics.stepped(StepResult(math.nan, 9, stop=False, seconds={}, norm=math.inf, refused=True), 30)
    metrics.ingested(RowChanges(np.arange(4), np.arange(1)), 9, 2, 5)
    facts = {"window": "w/0000", "sequence": 0, "step": 0, "events": 5, "known": 4, "items": 9, "seen_filtered": False}
    figures = {"recall": {20: 0.25}, "popularity_recall": {20: 0.125}}
    metrics.evaluated(Evaluation.model_validate({**facts, **figures, "novelty_bits": {20: 10.0}}))
    metrics.window_trained(7)
    value = registry.get_sample_value
    assert value("weir_trainer_examples_total") == 30
    assert value("weir_trainer_accidental_hits_total") == 3
    assert value("weir_trainer_loss") == 0.5
    assert value("weir_trainer_gradient_norm") == 2
    assert value("weir_trainer_clipped_steps_total") == 1
    assert value("weir_trainer_refused_steps_total") == 1
    assert value("weir_trainer_step_seconds_count", {"part": "update"}) == 1
    assert value("weir_trainer_item_table_rows") == 9
    assert value("weir_trainer_items_admitted_total") == 4
    assert value("weir_trainer_items_evicted_total") == 1
    assert value("weir_trainer_unadmitted_examples_total") == 2
    assert value("weir_trainer_exposed_items_total") == 5
    assert value("weir_trainer_prequential_recall", {"k": "20"}) == 0.25
    assert value("weir_trainer_popularity_recall", {"k": "20"}) == 0.125
    assert value("weir_trainer_novelty_nats", {"k": "20"}) == pytest.approx(6.931, abs=0.001)
    assert value("weir_trainer_window_sequence") == 7
    assert value("weir_bundle_exports_total", {"outcome": "held"}) == 0


def test_every_metric_has_the_prefix_and_a_sentence() -> None:
    registry = CollectorRegistry()
    TrainerMetrics(registry)
    text = generate_latest(registry).decode()
    own = [line for line in text.splitlines() if not line.startswith("# HELP process_")]
    help_lines = [line for line in own if line.startswith("# HELP") and "_created" not in line]
    assert len(help_lines) > 15
    for line in help_lines:
        _, _, name, sentence = line.split(" ", 3)
        assert name.startswith(("weir_trainer_", "weir_bundle", "weir_sketch_", "weir_variant_"))
        assert sentence.endswith(".")


def test_the_sketch_behind_log_q_is_examined() -> None:
    registry, sketch = CollectorRegistry(), CountMinSketch(256)
    sketch.update(np.arange(400))
    TrainerMetrics(registry).frequencies_updated(sketch, 1)
    found = health(sketch)
    for name, wanted in {"fill_ratio": found.fill, "distinct_keys": found.distinct}.items():
        assert registry.get_sample_value(f"weir_sketch_{name}", {"scope": "view"}) == wanted
    error = registry.get_sample_value("weir_sketch_log_q_error_nats", {"scope": "view"})
    assert error == found.log_q_error > 0.01


def test_the_sketch_is_examined_again_when_a_sixteenth_of_its_events_is_new() -> None:
    registry, sketch = CollectorRegistry(), CountMinSketch(256)
    metrics = TrainerMetrics(registry)

    def distinct_after(key: int) -> float | None:
        sketch.update(np.array([key]))
        metrics.frequencies_updated(sketch, 1)
        return registry.get_sample_value("weir_sketch_distinct_keys", {"scope": "view"})

    sketch.update(np.zeros(27, np.int64))
    first, *measured = [distinct_after(key) for key in range(1, 6)]
    # Of 29 events, one is new, of 30 two, of 31 one, of 32 two.
    assert first == measured[0] != measured[1] == measured[2] != measured[3]


def test_a_step_is_told_by_rank_and_node() -> None:
    metrics = TrainerMetrics()
    metrics.ranks_stepped(["a", "a", "b"], [0.25, 0.5, 2.0])
    metrics.ranks_stepped(["a", "a", "b"], [0.25, 0.5, 1.0])

    def seconds(rank: str, node: str) -> float | None:
        return metrics.registry.get_sample_value("weir_trainer_rank_step_seconds", {"rank": rank, "node": node})

    assert [seconds("0", "a"), seconds("1", "a"), seconds("2", "b")] == [0.25, 0.5, 1.0]
