""""""

import math
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.contracts.panes import retire_before
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import CorruptArtefactError, Store, WindowLog, WindowManifest
from weir.runtime.stopping import ended_by_signals
from weir.sketches import CountMinSketch, health
from weir.trainer.items.table import RowChanges
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.step import StepResult
from weir.trainer.stream.cost import measure
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver, TrainProgress
from weir.trainer.stream.windows import ReadAhead, windows

PARTS = ["draw", "rows", "hits", "tower", "loss", "backward", "sum", "update"]


def test_the_parts_of_a_step_are_timed_on_the_newest_windows(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    # 13 batches of 32 in each window.
    synthetic(writer, windows=4, events=400)
    before = store.find("").keys()
    cost = measure(WindowLog(store), config, 15)
    assert store.find("").keys() == before
    assert (cost.batch_size, cost.steps, cost.windows) == (32, 15, 2)
    assert 40 < cost.items <= 60
    assert list(cost.parts) == PARTS
    assert all(value >= 0 for value in cost.parts.values())
    assert min(cost.step, cost.tower, cost.products) > 0
    # The step holds both, and more. A median of few steps on a busy machine is not exact.
    assert cost.ratio > 1
    assert cost.step == pytest.approx(sum(cost.parts.values()), rel=0.5)


def test_the_loss_alone_grows_with_the_columns(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, events=400)
    plain = config.model_dump()
    few, many = (
        measure(WindowLog(store), TrainerConfig.model_validate(plain | {"negatives": {"uniform": count}}), 8)
        for count in (8, 400_000)
    )
    assert many.products > 20 * few.products
    assert many.parts["draw"] > 2 * few.parts["draw"]


def test_too_few_examples_are_refused(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, events=60)
    with pytest.raises(ValueError, match="1 windows hold 2 batches of 32 examples, at least 3 are needed: set a small"):
        measure(WindowLog(store), config, 4)


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


STEP = StepResult(1.5, 2, stop=False, seconds={"gradients": 0.1})
EVALUATION = Evaluation(window="w/0000", sequence=3, step=0, events=1, known=1, items=1, seen_filtered=False)


def run(observer: ProgressObserver) -> None:
    observer.evaluated(EVALUATION)
    observer.ingested(RowChanges(np.arange(3), np.arange(0)), 3, 7, 0)
    observer.window_started("w/0000", 3, 120, 0, 0)
    for step in range(1, 121):
        observer.stepped(STEP, 10, step, step)
    observer.window_trained(3, 120, 120)


def test_progress_comes_at_both_ends_and_every_50_steps(store: Store) -> None:
    told: list[TrainProgress] = []
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True, report=told.append)
    run(observer)
    assert [(one.batch, one.examples) for one in told] == [(0, 0), (50, 500), (100, 1000), (120, 1200)]
    assert told[0].loss is None
    assert told[-1] == TrainProgress(
        window="w/0000", sequence=3, batch=120, batches=120, step=120, examples=1200, loss=1.5, evaluation=EVALUATION
    )
    assert (observer.windows, observer.unadmitted) == (1, 7)
    assert store.exists("evaluations/w/0000.json")


def test_other_ranks_count_but_keep_silent(store: Store) -> None:
    told: list[TrainProgress] = []
    observer = ProgressObserver(store, TrainerMetrics(), is_first=False, report=told.append)
    run(observer)
    assert told == []
    assert observer.examples == 1200
    assert not store.exists("evaluations")


def test_a_refused_step_is_named_and_counts_no_example(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True)
    observer.stepped(STEP, 10, 1, 1)
    observer.stepped(STEP._replace(loss=math.nan, norm=math.inf, refused=True), 10, 2, 2)
    assert (observer.examples, observer.loss) == (10, 1.5)
    assert caplog.messages == ["step 2 is refused: loss nan, gradients of norm inf"]


def test_a_bounded_stream_ends_with_the_last_commit(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    found = windows(WindowLog(store), 0, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
    assert [manifest.sequence for manifest in found if manifest is not None] == [1, 2]


def test_a_followed_stream_goes_on_with_new_commits_until_a_signal(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=1)
    with ended_by_signals() as stop:
        seen = []
        for manifest in windows(WindowLog(store), -1, Workers(), stop, follow=True, poll_seconds=0.01):
            if manifest is None and len(seen) == 1:
                synthetic(writer, windows=1, seed=2, step_ms=7_200_000)
            elif manifest is None:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                seen.append(manifest.sequence)
        assert stop.is_set()
    assert seen == [0, 1]


def test_a_signal_ends_a_backlog_between_two_windows(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=3)
    with ended_by_signals() as stop:
        stream = windows(WindowLog(store), -1, Workers(), stop, follow=False, poll_seconds=0.01)
        first = next(stream)
        assert first is not None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(30)
        assert list(stream) == []


def sequences(store: Store, after: int) -> list[int]:
    found = windows(WindowLog(store), after, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
    return [manifest.sequence for manifest in found if manifest is not None]


def test_windows_that_have_retired_are_named_and_left_out(
    store: Store, writer: WindowWriter, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=5)
    assert sequences(store, -1) == [0, 1, 2, 3, 4]
    assert caplog.text == ""
    retire_before(store, 3, 3 * 3_600_000)
    assert sequences(store, -1) == [3, 4]
    assert "panes 0 to 2 have retired and are not trained on: training goes on with window 1970" in caplog.text
    assert sequences(store, 0) == [3, 4]
    assert "panes 1 to 2 have retired" in caplog.text
    caplog.clear()
    assert sequences(store, 2) == [3, 4]
    assert caplog.text == ""


class CountingLog(WindowLog):
    """Keeps how far the stream was when each commit was read."""

    reads: list[int]

    def next(self, after: int = -1) -> tuple[WindowManifest, ...]:
        self.reads.append(after)
        return super().next(after)


def test_a_backlog_is_taken_in_commit_by_commit(store: Store, writer: WindowWriter) -> None:
    synthetic(writer, windows=4)
    log = CountingLog(store)
    log.reads = []
    stream = windows(log, -1, Workers(), threading.Event(), follow=False, poll_seconds=0.01)
    for read in ([-1], [-1, 0], [-1, 0, 1]):
        next(stream)
        assert log.reads == read


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that read a window, in order."""
    names, read = list[str](), SharedWindow.read

    def noted(log: WindowLog, manifest: WindowManifest, config: TrainerConfig, workers: Workers) -> SharedWindow:
        names.append(threading.current_thread().name)
        return read(log, manifest, config, workers)

    monkeypatch.setattr(SharedWindow, "read", noted)
    return names


def same(mine: SharedWindow, other: SharedWindow) -> bool:
    return all(np.array_equal(*pair) for pair in zip(mine.own, other.own, strict=True))


def test_a_window_is_read_ahead_once(
    store: Store, writer: WindowWriter, config: TrainerConfig, readers: list[str]
) -> None:
    synthetic(writer, windows=3)
    log = WindowLog(store)
    windows, ahead = log.committed(), ReadAhead(log, config, Workers())
    for manifest in windows:
        found = ahead.read(manifest)
        assert same(found, SharedWindow.read(log, manifest, config, Workers()))
        ahead.start(manifest.sequence)
    ahead.read(windows[0])  # waits for the thread, which has found nothing
    here = threading.current_thread().name
    assert readers == [here, here, "read-ahead", here, "read-ahead", here, here]


def test_a_window_that_is_another_one_now_is_read_again(
    store: Store, writer: WindowWriter, config: TrainerConfig, readers: list[str]
) -> None:
    synthetic(writer, windows=2)
    log = WindowLog(store)
    first, second = log.committed()
    ahead = ReadAhead(log, config, Workers())
    ahead.start(first.sequence)
    ahead.read(second.model_copy(update={"max_event_ms": 0}))
    assert readers == ["read-ahead", threading.current_thread().name]


def test_what_is_damaged_is_named_when_its_turn_comes(
    store: Store, writer: WindowWriter, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=2)
    log = WindowLog(store)
    first, second = log.committed()
    for file in Path(store.url, second.folder).glob("examples*"):
        file.write_bytes(b"damaged")
    ahead = ReadAhead(log, config, Workers())
    with caplog.at_level("INFO"):
        ahead.start(first.sequence)
        with pytest.raises(CorruptArtefactError):
            ahead.read(second)
    assert "the window after 0 was not read ahead: " in caplog.text
    assert len(ahead.read(first)) == first.counts.positives
