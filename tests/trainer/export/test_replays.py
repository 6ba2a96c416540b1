"""Replays of what once went wrong, through the whole loop of training."""

import io
import shutil

import numpy as np
import pytest

from tests.trainer.support import collapse
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store, WindowLog
from weir.trainer.export.content import Content
from weir.trainer.export.gate import CanaryEvaluation
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.train import train


def settings(config: TrainerConfig) -> TrainerConfig:
    """Return settings under which a window of 600 events teaches something."""
    plain = config.model_dump() | {"checkpoint_every_steps": 500, "checkpoints_kept": 9, "bundles_kept": 20}
    plain["tower"] |= {"dimension": 16, "dropout": 0.0, "kind": "mean_pooling"}
    plain["optimizer"]["learning_rate"] = 5e-3
    return TrainerConfig.model_validate(plain)


def collapse_checkpoint(store: Store, config: TrainerConfig) -> None:
    """Leave a newer checkpoint in which the model knows nothing any more."""
    state = CheckpointLog(store, 9).load(config, Workers())
    assert state is not None
    collapse(state)
    state.position.step += 1
    CheckpointLog(store, 9).save(state, Workers())


def test_a_collapsed_model_is_served_for_one_window_at_most(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    config, log = settings(config), BundleLog(store)
    synthetic(writer, windows=5, events=600)
    good = train(store, config).bundle
    sound = CheckpointLog(store).names()
    assert log.current() == good
    collapse_checkpoint(store, config)
    # The first look: the collapsed bundle is worse on the newest window, though it was trained on it.
    held = train(store, config)
    assert str(held.verdict).startswith("held: recall@5")
    assert log.current() == good
    # Had the first look let it through, the next window withdraws it, before it is trained on, for the one confirmed.
    confirmed = CanaryEvaluation.read(store).reference
    log.promote(str(held.bundle))
    synthetic(writer, first=5, windows=1, events=600)
    train(store, config)
    withdrawal = log.withdrawal(str(held.bundle))
    assert withdrawal is not None
    assert (withdrawal.sequence, withdrawal.fallback, withdrawal.cases) == (5, confirmed, 600)
    assert log.current() != held.bundle
    # Nothing brings it back, and what is trained from a sound state is served again.
    for name in set(CheckpointLog(store).names()) - set(sound):
        store.remove(f"checkpoints/{name}")
    better = train(store, config)
    assert str(better.verdict).startswith("promoted: recall@5")
    assert log.current() == better.bundle
    assert log.manifest(str(better.bundle)).trained_sequence == 5


def test_windows_of_one_event_after_a_finished_demo_do_not_stop_promotion(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    config, log = settings(config), BundleLog(store)
    synthetic(writer, windows=4, events=600)
    train(store, config)
    for window in range(5):
        # An item that nobody would foretell.
        writer.commit([f"u{window}"], [f"i{59 - window}"], np.array([(10 + window) * 3_600_000]))
        summary = train(store, config)
        assert str(summary.verdict).startswith("promoted: "), summary.verdict
        assert log.current() == summary.bundle
    assert log.manifest(str(log.current())).trained_sequence == 8


def test_a_shop_with_five_events_an_hour_is_promoted_from_the_beginning(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    config, log = settings(config), BundleLog(store)
    synthetic(writer, windows=12, events=5)
    train(store, config)
    manifests = log.manifests()
    assert [manifest.trained_sequence for manifest in manifests] == list(range(12))
    assert all(manifest.promoted for manifest in manifests)
    assert log.current() == manifests[-1].version
    assert manifests[-1].verdict == "promoted: 60 cases, 200 are compared"


def test_a_process_for_each_window_judges_as_one_process_for_all(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    """Pooled cases and the trial survive a restart."""
    config, other = settings(config), Store(f"{store.url}-other")
    synthetic(WindowWriter(other), windows=8, events=80)
    train(other, config)
    bundles = []
    for one in WindowLog(other).committed():
        shutil.copytree(other.path(one.folder), store.path(one.folder))
        WindowLog(store).commit(one)
        bundles.append(train(store, config).bundle)
    whole = BundleLog(other).manifests()
    assert [manifest.version for manifest in whole] == bundles
    assert [manifest.verdict for manifest in whole] == [m.verdict for m in BundleLog(store).manifests()]
    assert store.read("bundles/TRIAL.json") == other.read("bundles/TRIAL.json")


def test_a_run_killed_between_export_and_checkpoint_finds_its_bundle_again(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, log, save = settings(config), BundleLog(store), CheckpointLog.save
    synthetic(writer, windows=2, events=300)

    def killed(self: CheckpointLog, state: TrainerState, workers: Workers) -> str:
        if state.position.sequence == 2:
            raise KeyboardInterrupt
        return save(self, state, workers)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointLog, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(store, config)
    before = log.manifests()
    assert [manifest.trained_sequence for manifest in before] == [0, 1]
    summary = train(store, config)
    assert log.manifests() == before
    assert summary.bundle == log.current() == before[-1].version


def test_a_retraining_never_serves_what_lies_in_the_store(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    config, log = settings(config), BundleLog(store)
    synthetic(writer, windows=3, events=600)
    train(store, config)
    old = {name: store.read(name) for name in store.glob("bundles/*/*.npy")}
    store.remove("checkpoints")
    changed = TrainerConfig.model_validate({**config.model_dump(), "seed": 7, "bundles_kept": 2})
    summary = train(store, changed)
    assert summary.bundle == log.current()
    served = store.read(f"bundles/{log.current()}/vectors.npy")
    assert served not in old.values()
    state = CheckpointLog(store).load(changed, Workers())
    assert state is not None
    np.testing.assert_array_equal(np.load(io.BytesIO(served)), Content.of(state).vectors)
    # What is retired is what was exported first, though its names come last.
    assert [manifest.trained_sequence for manifest in log.manifests()][-2:] == [1, 2]
    assert log.manifests()[-1].version == summary.bundle
