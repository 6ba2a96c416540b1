"""MovieLens-1M: ingest counted again with numpy alone, and one pass of training against popularity.

WEIR_EVENTS sets how many of the 1,000,209 events are taken, oldest first; the figures of docs/training.md take all.
WEIR_TOWER sets the tower, by default the trainer's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from prometheus_client import CollectorRegistry

from tests.trainer.windows import WindowWriter
from weir.contracts import Store, WindowLog
from weir.contracts.storage.documents import read_document
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.sketches import CountMinSketch
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state.progress import Evaluation
from weir.trainer.train import train

LOG = Path(os.environ.get("WEIR_DATA", "../shared/data")) / "ml-1m/interactions.parquet"
WEEK = 7 * 86_400


@pytest.mark.data
@pytest.mark.skipif(not LOG.exists(), reason=f"{LOG} is not there (set WEIR_DATA)")
def test_every_rating_is_in_its_window_and_the_sketches_add_up(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    config = PipelineConfig(log=str(LOG), window_seconds=WEEK, timestamp_unit="s", metrics_port=0)
    assert ingest(store, config, registry=CollectorRegistry()).valid == 1_000_209
    times = pq.read_table(LOG, columns=["timestamp"])["timestamp"].to_numpy()
    starts, counts = np.unique(times // WEEK * WEEK, return_counts=True)
    log = WindowLog(store)
    manifests = log.committed()
    assert [manifest.start_ms for manifest in manifests] == (1000 * starts).tolist()
    assert [manifest.counts.events for manifest in manifests] == counts.tolist()
    largest = manifests[int(np.argmax(counts))]
    sketch, items = CountMinSketch.from_bytes(log.sketch(largest)), log.items(largest)
    assert sketch.total == counts.max()
    assert (sketch.estimate(items["item_key"].to_numpy()) >= items["count"].to_numpy()).all()


DATA = Path(os.environ.get("WEIR_DATA", Path(__file__).parents[3] / "shared/data")) / "ml-1m/interactions.parquet"
EVENTS = int(os.environ.get("WEIR_EVENTS", "80000"))
TOWER = TowerConfig.model_validate({"kind": os.environ.get("WEIR_TOWER", TowerConfig().kind)})
WEEK_MS = 7 * 86_400_000


def commit_weeks(store: Store, events: int, weights: Mapping[int, float] = MappingProxyType({})) -> None:
    """Commit the oldest events in weekly windows; `weights` by place in time, 1 for all others."""
    table = pq.read_table(DATA, columns=["user_id", "item_id", "timestamp"])
    order = np.argsort(table["timestamp"].to_numpy(), kind="stable")[:events]
    users, items = (np.array([str(raw) for raw in table[name].to_pylist()], object) for name in ("user_id", "item_id"))
    times = table["timestamp"].to_numpy()[order] * 1000
    week = (times - times[0]) // WEEK_MS
    weight = np.ones(events, np.float32)
    weight[list(weights)] = list(weights.values())
    writer = WindowWriter(store, history_length=50, width=1 << 14)
    for number in np.unique(week):
        own = week == number
        rows = order[own]
        start = int(times[0] + number * WEEK_MS)
        span = (start, start + WEEK_MS)
        writer.commit(list(users[rows]), list(items[rows]), times[own], span=span, weights=weight[own])


def over_last_tenth(store: Store) -> dict[str, float]:
    """Return means over the windows after the first 90 % of the events, each weighted by its events."""
    manifests = WindowLog(store).committed()
    events = np.array([manifest.counts.events for manifest in manifests])
    chosen = np.flatnonzero(events.cumsum() > 0.9 * events.sum())
    names = [f"evaluations/{manifests[number].name}.json" for number in chosen]
    found = [read_document(store, name, Evaluation) for name in names]
    return {
        f"{name}@{k}": float(np.average([getattr(one, name)[k] for one in found], weights=events[chosen]))
        for name in ("recall", "ndcg", "popularity_recall", "novelty_bits")
        for k in (20, 100)
    }


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not there: set WEIR_DATA")
def test_one_pass_finds_twice_what_popularity_finds(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    store = Store(str(tmp_path))
    commit_weeks(store, EVENTS)
    config = TrainerConfig(device="cpu", metrics_port=0, export_every_windows=1000, tower=TOWER)
    summary = train(store, config)
    last = over_last_tenth(store)
    print({name: round(value, 4) for name, value in last.items()}, f"{summary.seconds:.0f} s")  # noqa: T201
    assert summary.examples == EVENTS
    assert last["recall@20"] > 2 * last["popularity_recall@20"]
