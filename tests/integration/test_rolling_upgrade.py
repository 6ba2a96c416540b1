"""Processes of two minor formats share a store, in both orders: none refuses it, none reads it differently."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.contracts.minor_formats import KINDS, Change, of_an_older, of_the_next, rewrite
from tests.pipelines import support
from tests.serving.support import histories_of
from weir.contracts import BundleLog, EventClock, LogState, Store, WindowLog, hash_ids
from weir.contracts.verification import verify
from weir.pipelines.batch.ingest import ingest
from weir.pipelines.config import PipelineConfig
from weir.serving.bundles.loading import load_bundle
from weir.serving.bundles.watcher import BundleWatcher
from weir.serving.metrics import BundleMetrics
from weir.serving.monitor.results import Examples, Freshness, WindowRecall, recorded, save
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.train import train

ORDERS = pytest.mark.parametrize(("change", "minor"), [(of_the_next, 1), (of_an_older, 0)])
USERS = [f"user-{number}" for number in range(8)]


def config(folder: Path) -> PipelineConfig:
    return support.config(folder, item_features={"categorical": ["genre"]})


def trainer_config() -> TrainerConfig:
    return TrainerConfig(
        device="cpu",
        batch_size=16,
        tower=TowerConfig(dimension=8, history_length=3, heads=2, dropout=0.0),
        negatives=NegativesConfig(uniform=8),
        evaluation_k=(1, 5, 20),
        metrics_port=0,
    )


def events(first: int, last: int) -> list[str]:
    return [
        support.Event(USERS[n % 8], f"item-{n % 11}", n // 4, event_id=f"e{n}", genre=("jazz",)).line()
        for n in range(first, last)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all kinds of documents: late panes, dead letters, a snapshot, a bundle, results, a clock."""
    folder = tmp_path_factory.mktemp("whole")
    store = Store(str(folder / "store"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.contracts.commits.log_state._EVERY", 1)
        for part, lines in enumerate(([*events(0, 80), "no JSON\n"], events(60, 160), events(20, 30))):
            support.write_lines(folder / "log" / f"part-{part}.jsonl", lines)
            ingest(store, config(folder), registry=CollectorRegistry())
    train(store, trainer_config())
    newest = WindowLog(store).committed()[-1]
    save(store, result(newest.sequence, str(newest.name)))
    EventClock(event_origin=1.0, wall_origin=2.0, speed=3.0).save(store)
    return folder


def result(sequence: int, window: str) -> WindowRecall:
    return WindowRecall(
        sequence=sequence,
        window=window,
        measured_at=1.5,
        bundle_versions=("v1",),
        examples=Examples(sampled=3),
        index={10: 1.0},
        model={10: 0.5},
        served={},
        popularity={},
        freshness=Freshness(bundle_version="v1", servable_at=1, seconds_min=1, seconds_median=2, seconds_max=3),
    )


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def read(store: Store) -> dict[str, Any]:
    """All that followers make of a store."""
    histories, watcher = histories_of(store), BundleWatcher(store, BundleMetrics(CollectorRegistry()))
    assert watcher.refresh()
    assert watcher.bundle is not None
    keys = hash_ids(USERS)
    known = histories.look_up(keys, np.arange(len(keys)))
    seen = known.seen
    return {
        "windows": WindowLog(store).committed(),
        "state": LogState.open(store).model_dump(exclude={"cursor"}),
        "dead": support.dead_letters(store),
        "histories": known.items.tolist(),
        "seen": [set(seen.of(user).tolist()) for user in range(len(USERS))],
        # What is written again has another checksum, by which manifests name commits and the bundles they build on.
        "served": watcher.bundle.manifest.model_copy(update={"parent": None, "trained_commit": None}),
        "chain": [manifest.version for manifest in BundleLog(store).chain(watcher.bundle.manifest)],
        "bundle": load_bundle(BundleLog(store), str(BundleLog(store).current())).ids[:].tolist(),
        "results": recorded(store),
        "clock": EventClock.of(store),
    }


@ORDERS
def test_every_reader_takes_what_a_neighbouring_minor_format_wrote(
    copy: Path, change: Change, minor: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(str(copy / "store"))
    with caplog.at_level(logging.WARNING):
        before = read(store)
        rewritten = rewrite(store, change, minor)
        assert KINDS.keys() | {"bundles/CURRENT"} <= rewritten.keys()
        assert read(store) == before
    assert not caplog.records
    assert verify(store).findings == []


@ORDERS
def test_every_writer_goes_on_behind_what_a_neighbouring_minor_format_wrote(
    copy: Path, change: Change, minor: int
) -> None:
    store = Store(str(copy / "store"))
    rewrite(store, change, minor)
    support.write_lines(copy / "log/part-9.jsonl", [*events(150, 160), *events(160, 200)])
    settings = config(copy).model_copy(update={"log": str(copy / "log")})
    summary = ingest(store, settings, registry=CollectorRegistry())
    assert (summary.valid, summary.duplicates, summary.dead) == (40, 10, 0)
    assert ingest(store, settings, registry=CollectorRegistry()).read == 0
    support.check_histories(store, 3)
    support.check_counts(store)
    trained = train(store, trainer_config())
    assert 0 < trained.windows < len(WindowLog(store).committed())
    assert load_bundle(BundleLog(store), str(trained.bundle)).items == 11
