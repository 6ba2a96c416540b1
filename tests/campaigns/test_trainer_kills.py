"""A following trainer is killed at random moments; its parameters end bit for bit where an unkilled run ends."""

import shutil
import time
from pathlib import Path

import numpy as np

from tests.campaigns import lives
from tests.campaigns.hunter import counting, size_of
from tests.trainer.support import same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.contracts.bundles.checkpoint import read_checkpoint_mark
from weir.contracts.verification import verify
from weir.serving.bundles.loading import load_bundle
from weir.trainer.export import Content
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.train import train

MOST_WINDOWS = 200

CONFIG = TrainerConfig(
    device="cpu",
    batch_size=16,
    tower=TowerConfig(dimension=8, history_length=6, dropout=0.1),
    negatives=NegativesConfig(uniform=16),
    evaluation_k=(5, 20),
    evaluation_examples=50,
    checkpoint_every_steps=7,
    export_every_windows=2,
    publish_bound=0.3,
    bundle_chain=2,
    metrics_port=0,
    poll_seconds=0.02,
)


def final(store: Store) -> TrainerState:
    train(store, CONFIG)
    state = CheckpointLog(store).load(CONFIG, Workers())
    assert state is not None
    return state


def test_killed_again_and_again_it_ends_where_an_unkilled_run_ends(tmp_path: Path) -> None:
    store, whole = Store(str(tmp_path / "killed")), Store(str(tmp_path / "whole"))
    writer = WindowWriter(store)
    synthetic(writer, windows=1, events=150)
    with counting("kills: trainer") as row:
        row.faults = size_of(3, 30)
        hunter = lives.started("trainer", store, CONFIG.model_dump_json(), row.faults, tmp_path / "log")
        for number in range(1, MOST_WINDOWS):
            if hunter.poll() is not None:
                break
            synthetic(writer, first=number, windows=1, events=150, seed=number)
            time.sleep(0.5)
        assert hunter.wait(120) == 0, (tmp_path / "log").read_text()
        shutil.copytree(tmp_path / "killed/commits", tmp_path / "whole/commits")
        shutil.copytree(tmp_path / "killed/windows", tmp_path / "whole/windows")
        shutil.copy(tmp_path / "killed/STORE.json", tmp_path / "whole/STORE.json")
        assert CheckpointLog(store).names(), "no life has come to a checkpoint: the test has not tested recovery"
        assert same_tensors(final(store).tensors(), final(whole).tensors()) == []
        # What was compared was restored from a delta.
        assert read_checkpoint_mark(store, CheckpointLog(store).names()[-1]).parent is not None
        assert_served_as_trained(store)
        row.without_effect = row.faults


def assert_served_as_trained(store: Store) -> None:
    """Compare what a server loads, through a chain of deltas, with the state."""
    log = BundleLog(store)
    state = CheckpointLog(store).load(CONFIG, Workers())
    assert state is not None
    assert max(manifest.depth for manifest in log.manifests()) > 0
    bundle, content = load_bundle(log, str(log.current())), Content.of(state)
    assert (bundle.version, bundle.items) == (content.version, len(content.vectors))
    published = bundle.exact.vectors[bundle.rows_of(content.keys)]
    assert (np.linalg.norm(published - content.vectors, axis=1) <= CONFIG.publish_bound + 1e-6).all()
    assert verify(store).findings == []
