"""A log with features is ingested and learned, and some events of each window of its second half are tested before."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from weir.contracts import Store, WindowLog
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.progress import Evaluation, mean_metrics
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import Positives, SharedWindow, read_positives
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.prequential import evaluate
from weir.trainer.stream.progress import ProgressObserver

HOUR = 3600
ORIGIN = 1_700_000_000 // HOUR * HOUR
WINDOWS = 10

CONFIG = TrainerConfig(
    device="cpu",
    batch_size=128,
    tower=TowerConfig(dimension=16, history_length=10),
    negatives=NegativesConfig(uniform=64),
    optimizer=OptimizerConfig(learning_rate=0.01),
)


def learned(
    store: Store, log: Path, tested: Callable[[int, Positives], Positives], **features: Any
) -> tuple[TrainerState, dict[str, float]]:
    """Return the state, and the figures of what is `tested` of the positives of each window, given its number."""
    settings = PipelineConfig(log=str(log), window_seconds=HOUR, history_length=10, metrics_port=0, **features)
    ingest(store, settings, registry=CollectorRegistry())
    state, windows, workers = TrainerState.fresh(CONFIG), WindowLog(store), Workers()
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True, report=None)
    learner = Learner(state, windows, workers, threading.Event(), observer, CheckpointLog(store))
    found: list[Evaluation] = []
    for number, manifest in enumerate(windows.committed()):
        if number >= WINDOWS // 2:
            positives = read_positives(windows, manifest, 10, buckets=CONFIG.features.buckets)
            shared = SharedWindow(tested(number, positives), workers)
            asked = shared.sampled(CONFIG.seed, manifest.sequence, CONFIG.evaluation_examples)
            found.append(evaluate(state, manifest, asked))
        assert learner.process_window(manifest)
    return state, mean_metrics(found)
