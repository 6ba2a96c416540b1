"""From a log with features to better figures on items that have only just come.

Taste is a matter of genre and price alone, and every window brings new items, which stay. An item of the window before
has had two to three events: its id says little yet, its features what matters. The cut-off, 20, is as many items as a
taste has in the end. Within a taste there is nothing to know but how often an item occurs, which is not tested here.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from prometheus_client import CollectorRegistry

from contracts import Store, WindowLog, hash_ids
from pipelines.config import PipelineConfig
from pipelines.ingest import ingest
from trainer.config import NegativesConfig, OptimizerConfig, TowerConfig, TrainerConfig
from trainer.ranks.workers import Workers, deterministic
from trainer.state.checkpoint import CheckpointLog
from trainer.state.evaluation import Evaluation, mean_metrics
from trainer.state.trainer_state import TrainerState
from trainer.step.positives import Positives, read_positives
from trainer.step.shared_window import SharedWindow
from trainer.stream.learner import Learner
from trainer.stream.metrics import TrainerMetrics
from trainer.stream.prequential import evaluate
from trainer.stream.progress import ProgressObserver
from trainer.stream.windows import StopSignal

HOUR = 3600
ORIGIN = 1_700_000_000 // HOUR * HOUR
WINDOWS, EVENTS, USERS = 10, 1200, 400
GENRES, LEVELS, NEW = 20, 2, 2
"""New items of each taste, which is a genre and a level of prices, per window."""

NAMED = {"none": {}, "genre": {"categorical": ["genre"]}, "both": {"categorical": ["genre"], "dense": ["price"]}}


def write_log(path: Path, seed: int) -> None:
    """Write events in which users keep to their taste nine times in ten, and take any of its items alike."""
    draw = np.random.default_rng(seed)
    tastes = draw.integers(GENRES * LEVELS, size=USERS)
    with path.open("w") as file:
        for window in range(WINDOWS):
            for second in np.sort(draw.integers(HOUR, size=EVENTS)).tolist():
                user = int(draw.integers(USERS))
                taste = int(tastes[user] if draw.random() < 0.9 else draw.integers(GENRES * LEVELS))
                number = int(draw.integers(NEW))
                event = {
                    "user_id": f"u{user}",
                    "item_id": f"{draw.integers(window + 1)}-{taste}-{number}",
                    "timestamp": ORIGIN + window * HOUR + second,
                    "genre": [f"genre {taste % GENRES}", "any"],
                    "price": 10.0 + 50.0 * (taste // GENRES) + number,
                }
                file.write(json.dumps(event) + "\n")


def about_items_of(window: int, found: Positives) -> Positives:
    ids = [f"{window}-{taste}-{number}" for taste in range(GENRES * LEVELS) for number in range(NEW)]
    chosen = np.isin(found.items, hash_ids(pa.array(ids)))
    return Positives(*(column[chosen] for column in found))


def figures_on_fresh_items(folder: Path, log: Path, features: dict[str, list[str]]) -> dict[str, float]:
    """Ingest and learn a log; return the figures, over its second half, on items new in the window before the test."""
    store, workers = Store(str(folder)), Workers()
    settings = PipelineConfig(
        log=str(log), window_seconds=HOUR, history_length=10, metrics_port=0, item_features=features
    )
    ingest(store, settings, registry=CollectorRegistry())
    config = TrainerConfig(
        device="cpu",
        batch_size=128,
        tower=TowerConfig(dimension=16, history_length=10),
        negatives=NegativesConfig(uniform=64),
        optimizer=OptimizerConfig(learning_rate=0.01),
    )
    state, windows = TrainerState.fresh(config), WindowLog(store)
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True, report=None)
    learner = Learner(state, windows, workers, StopSignal(), observer, CheckpointLog(store))
    found: list[Evaluation] = []
    for number, manifest in enumerate(windows.committed()):
        if number >= WINDOWS // 2:
            shared = SharedWindow(about_items_of(number - 1, read_positives(windows, manifest, 10)), workers)
            asked = shared.sampled(config.seed, manifest.sequence, config.evaluation_examples)
            found.append(evaluate(state, manifest, asked))
        assert learner.process_window(manifest)
    return mean_metrics(found)


@pytest.mark.parametrize("seed", [0, 1])
def test_features_find_fresh_items_that_ids_alone_do_not(tmp_path: Path, seed: int) -> None:
    torch.set_num_threads(1)
    write_log(tmp_path / "log.jsonl", seed)
    with deterministic():
        found = {
            name: figures_on_fresh_items(tmp_path / name, tmp_path / "log.jsonl", of) for name, of in NAMED.items()
        }
    print({name: [round(of[f"recall@{k}"], 4) for k in (20, 100)] for name, of in found.items()})  # noqa: T201
    recall = {name: of["recall@20"] for name, of in found.items()}
    assert recall["genre"] > 1.2 * recall["none"]
    assert recall["both"] > 1.05 * recall["genre"]
