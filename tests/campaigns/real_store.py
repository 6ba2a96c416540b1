"""A small store as the stages themselves make it: every kind of file that a store can hold, most of them twice."""

import random
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import weir.contracts.commits.log_state
import weir.pipelines.runs.hash_collisions
import weir.serving.monitor.loop
from tests.pipelines import support
from tests.pipelines.support import Event
from tests.serving.process import ServerProcess
from weir.contracts import BundleLog, EventClock, Pin, Store, Withdrawal
from weir.contracts.served_lists import served_files
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.client import RetrievalClient, by_user
from weir.serving.monitor.config import MonitorConfig
from weir.serving.monitor.loop import Monitor
from weir.serving.monitor.metrics import MonitorMetrics
from weir.trainer.export.compaction import compact
from weir.trainer.export.servable import Servable
from weir.trainer.export.snapshot import PublishedSnapshot
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.train import train

USERS, ITEMS, ROUNDS = 12, 25, 5
CUTOFFS = (2, 5)

TRAINER = TrainerConfig(
    device="cpu",
    batch_size=16,
    tower=TowerConfig(kind="mean_pooling", dimension=8, history_length=3),
    negatives=NegativesConfig(uniform=8),
    evaluation_k=CUTOFFS,
    evaluation_examples=20,
    publish_bound=0.9,
    metrics_port=0,
)


def pipeline(folder: Path) -> PipelineConfig:
    """Return the settings of the pipeline that reads ``folder/log``."""
    return support.config(folder, window_seconds=60, chunk_bytes=4000, chunk_rows=50)


def round_of(number: int) -> list[str]:
    """Return the lines of one more minute of the log; one is not JSON, one has no user."""
    rng = random.Random(number)
    events = [
        Event(f"user-{rng.randrange(USERS)}", f"item-{rng.randrange(ITEMS)}", 60 * number + rng.randrange(60),
              rng.choice(["click", "click", "skip"]), f"event-{number}-{one}", ("genre",), 1.0)
        for one in range(40)
    ]  # fmt: skip
    return [*(event.line() for event in events), f"no json {number}\n", '{"item_id": "item-1"}\n']


def advance(folder: Path, number: int) -> None:
    """Let the log grow by one round, and the pipeline commit it; all of it, but for the last round."""
    support.write_lines(folder / "log/events.jsonl", round_of(number))
    if number < ROUNDS - 1:
        ingest(Store(str(folder / "store")), pipeline(folder), registry=CollectorRegistry())
    else:
        # With windows left open, the next run needs to know which of their rows were refused.
        support.run(Store(str(folder / "store")), pipeline(folder), flush=False, only_whole_lines=True)


def measure(store: Store, target: str) -> None:
    """Let a monitor measure what has been committed."""
    settings = MonitorConfig(target=target, k=CUTOFFS, examples_per_window=20, timeout_seconds=5)
    with RetrievalClient(target, timeout=5) as client:
        Monitor(store, settings, client, MonitorMetrics(CollectorRegistry())).step()


def show(store: Store, target: str) -> None:
    """Let users ask twice, so that the server writes two files of what they were shown."""
    with RetrievalClient(target, timeout=5) as client:
        for number in range(1, 3):
            client.retrieve([by_user(f"user-{user}", 5) for user in range(USERS // number)])
            ends = time.monotonic() + 30
            while len(served_files(store)) < number and time.monotonic() < ends:
                time.sleep(0.05)


def build(folder: Path) -> Store:
    """Make the store: five rounds of ingest, the trainer one round behind, the monitor two."""
    store = Store(str(folder / "store"))
    with pytest.MonkeyPatch.context() as patch:
        # These files are written every so many commits; a small store has few.
        patch.setattr(weir.contracts.commits.log_state, "_EVERY", 2)
        patch.setattr(weir.pipelines.runs.hash_collisions, "_PANES_BETWEEN_SAVES", 2)
        patch.setattr(weir.serving.monitor.loop, "_WINDOWS_BETWEEN_SAVES", 2)
        for number in range(ROUNDS):
            advance(folder, number)
            if number in {1, 2, 3}:
                train(store, TRAINER)
            if number == 2:
                with ServerProcess(store, served={"share": 1, "flush_seconds": 0.2}) as server:
                    server.said("serving bundle")
                    measure(store, server.target)
                    show(store, server.target)
    bundles = BundleLog(store)
    assert any(manifest.depth for manifest in bundles.manifests()), "no bundle is a delta"
    newest, older = bundles.manifests()[-1], bundles.manifests()[0]
    servable = Servable.open(bundles, newest)
    compact(bundles, PublishedSnapshot.of(servable), servable)
    why = {"sequence": newest.trained_sequence, "window": newest.trained_window, "cases": 200, "verdict": "fell"}
    bundles.withdraw(Withdrawal(version=older.version, fallback=newest.version, at=time.time(), **why))
    bundles.set_pin(Pin(version=newest.version, by="somebody", at=time.time(), why="a trial"))
    EventClock(event_origin=support.ORIGIN, wall_origin=time.time() - 3600, speed=2.0).save(store)
    return store


def files(store: Store) -> list[str]:
    """Return the names of all files but locks."""
    return sorted(name for name in store.find() if not name.endswith(".lock"))
