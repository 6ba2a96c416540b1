"""Real bundles and windows; only which of them is promoted is arranged."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

from tests.trainer.support import absorb, batches_of, collapse, drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Pin, Store, WindowLog, WindowManifest, Withdrawal
from weir.contracts.documents import write_document
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.cases import RecentCases
from weir.trainer.export.exporter import Exporter
from weir.trainer.export.gate import PairedGate
from weir.trainer.export.trial import Trial, Trials
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.shared_window import SharedWindow
from weir.trainer.step.step import train_step
from weir.trainer.stream.metrics import TrainerMetrics


@dataclass
class Scene:
    """A store with a good bundle, a collapsed one, and windows that neither was trained on."""

    store: Store
    config: TrainerConfig
    good: str
    bad: str

    @property
    def log(self) -> BundleLog:
        return BundleLog(self.store)

    @property
    def unseen(self) -> list[WindowManifest]:
        return WindowLog(self.store).committed()[2:]

    def review(self, window: WindowManifest) -> Withdrawal | None:
        """As a process does that knows nothing but the store."""
        cases = RecentCases(self.store, self.config).note(window, drawn(self.store, window, self.config))
        return Trials(self.store, PairedGate.of(self.config)).review(window, cases)

    def served(self) -> str | None:
        return self.log.current()


@pytest.fixture(scope="module")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Train once; return the folder of the store, and the versions of the good and the bad bundle."""
    torch.set_num_threads(1)
    store = Store(str(tmp_path_factory.mktemp("trial")))
    writer = WindowWriter(store)
    synthetic(writer, windows=2, events=600)
    state = TrainerState.fresh(CONFIG)
    for sequence, window in enumerate(WindowLog(store).committed()):
        absorb(state, WindowLog(store), window)
        for _ in range(15):
            for batch in batches_of(store, state, sequence):
                train_step(state, batch, Workers())
        state.position.trained_sequence = sequence
    good = export_bundle(store, state).version
    collapse(state)
    state.position.step += 1
    bad = export_bundle(store, state).version
    synthetic(writer, first=2, windows=2, events=300)
    synthetic(writer, first=4, windows=12, events=50)
    return Path(store.url), good, bad


CONFIG = TrainerConfig.model_validate(
    {
        "device": "cpu",
        "batch_size": 32,
        "tower": {"dimension": 16, "history_length": 6, "kind": "mean_pooling"},
        "negatives": {"uniform": 16},
        "optimizer": {"learning_rate": 5e-3},
        "evaluation_k": (1, 5, 20),
    }
)


@pytest.fixture
def scene(_scene: tuple[Path, str, str], store: Store) -> Scene:
    """The good bundle has been confirmed, the bad one is promoted."""
    folder, good, bad = _scene
    shutil.copytree(folder, store.url)
    made = Scene(store, CONFIG, good, bad)
    write_document(store, "bundles/TRIAL.json", Trial(reference=good))
    made.log.promote(bad)
    return made


def test_a_fall_on_a_window_that_neither_has_seen_rolls_back_and_says_so(scene: Scene) -> None:
    window = scene.unseen[0]
    withdrawn = scene.review(window)
    assert scene.served() == scene.good
    assert withdrawn == scene.log.withdrawal(scene.bad)
    assert withdrawn is not None
    assert (withdrawn.version, withdrawn.fallback, withdrawn.cases) == (scene.bad, scene.good, 300)
    assert (withdrawn.sequence, withdrawn.window) == (window.sequence, str(window.name))
    assert withdrawn.verdict.startswith("rolled back: recall@5 is 0.")
    assert scene.log.withdrawal(scene.good) is None
    assert scene.review(scene.unseen[1]) is None
    assert scene.served() == scene.good


def test_the_exporter_counts_and_logs_a_rollback(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    made = Exporter(scene.store, CONFIG, TrainerMetrics(registry))
    for window in scene.unseen[:2]:
        made.review(window, SharedWindow.read(WindowLog(scene.store), window, CONFIG, Workers()))
    assert registry.get_sample_value("weir_trainer_bundle_rollbacks_total") == 1
    assert f"bundle {scene.bad} is withdrawn, {scene.good} is served again: rolled back" in caplog.text


def test_a_bundle_that_holds_its_own_is_confirmed(scene: Scene) -> None:
    write_document(scene.store, "bundles/TRIAL.json", Trial(reference=scene.bad))
    scene.log.promote(scene.good)
    assert scene.review(scene.unseen[0]) is None
    assert scene.served() == scene.good
    assert Trial.read(scene.store) == Trial(reference=scene.good)


def test_small_windows_are_pooled_until_they_decide(scene: Scene) -> None:
    small = scene.unseen[2:]
    assert [scene.review(window) for window in small[:3]] == [None] * 3
    assert scene.served() == scene.bad
    assert Trial.read(scene.store).evidence.cases == 150
    # A window counts once, however often a run that is killed comes by.
    assert scene.review(small[2]) is None
    assert Trial.read(scene.store).evidence.cases == 150
    withdrawn = scene.review(small[3])
    assert withdrawn is not None
    assert withdrawn.cases == 200
    assert scene.served() == scene.good


def test_all_that_was_promoted_since_the_last_confirmation_is_withdrawn(scene: Scene) -> None:
    small = scene.unseen[2:]
    for window in small[:2]:
        scene.review(window)
    twin = scene.log.manifest(scene.bad).model_copy(update={"version": f"{scene.bad}-twin"})
    for entry in twin.files:
        scene.store.write(f"{twin.folder}/{entry.name}", scene.store.read(f"bundles/{scene.bad}/{entry.name}"))
    scene.log.commit(twin)
    scene.log.promote(twin.version)
    for window in small[2:4]:
        scene.review(window)
    assert scene.served() == scene.good
    for version in (scene.bad, twin.version):
        withdrawal = scene.log.withdrawal(version)
        assert withdrawal is not None
        assert withdrawal.version == version


def test_windows_that_one_of_them_has_learnt_prove_nothing(scene: Scene) -> None:
    for window in WindowLog(scene.store).committed()[:2]:
        assert scene.review(window) is None
    assert scene.served() == scene.bad
    assert Trial.read(scene.store).evidence.cases == 0


@pytest.mark.parametrize("moment", ["write_document", "withdraw", "publish"])
def test_a_run_killed_at_any_moment_of_a_rollback_completes_it(
    scene: Scene, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target = (
            "weir.trainer.export.trial.write_document"
            if moment == "write_document"
            else f"weir.contracts.BundleLog.{moment}"
        )
        patch.setattr(target, killed)
        with pytest.raises(KeyboardInterrupt):
            scene.review(scene.unseen[0])
    # Started again, it comes by the same window: nothing of it has been trained on.
    assert scene.review(scene.unseen[0]) is not None
    assert scene.served() == scene.good
    assert scene.log.withdrawal(scene.bad) is not None


def test_what_was_withdrawn_is_not_promoted_again_by_itself(scene: Scene) -> None:
    scene.review(scene.unseen[0])
    state = TrainerState.fresh(CONFIG)
    absorb(state, WindowLog(scene.store), WindowLog(scene.store).committed()[0])
    manifest = export_bundle(scene.store, state)
    # As if the gate had let it through once, and another look had withdrawn it.
    scene.log.promote(scene.good)
    scene.log.commit(manifest.model_copy(update={"promoted": True}))
    withdrawal = scene.log.withdrawal(scene.bad)
    assert withdrawal is not None
    scene.log.withdraw(withdrawal.model_copy(update={"version": manifest.version}))
    assert export_bundle(scene.store, state).promoted
    assert scene.served() == scene.good


def test_what_an_operator_pins_is_not_rolled_back_and_is_trusted_afterwards(scene: Scene) -> None:
    scene.log.set_pin(Pin(version=scene.bad, by="ann@shop", at=1.8e9))
    assert scene.review(scene.unseen[0]) is None
    assert scene.served() == scene.bad
    scene.log.lift_pin()
    assert scene.review(scene.unseen[1]) is None
    assert scene.served() == scene.bad
    assert Trial.read(scene.store).reference == scene.bad


@pytest.mark.parametrize("lost", ["bundles/CURRENT", "bundles/TRIAL.json", "reference", "promoted"])
def test_damage_begins_the_trial_again(scene: Scene, lost: str, caplog: pytest.LogCaptureFixture) -> None:
    names = {"reference": f"bundles/{scene.good}/index.faiss", "promoted": f"bundles/{scene.bad}/MANIFEST.json"}
    scene.store.write(names.get(lost, lost), b"\x00")
    assert scene.review(scene.unseen[0]) is None
    assert names.get(lost, lost) in caplog.text


def test_without_any_bundle_there_is_nothing_to_review(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    [window] = synthetic(writer, windows=1)
    assert Scene(store, config, "", "").review(window) is None


def test_the_reference_survives_retirement(scene: Scene) -> None:
    state = TrainerState.fresh(CONFIG)
    absorb(state, WindowLog(scene.store), WindowLog(scene.store).committed()[0])
    for step in range(6):
        state.position.step = step
        export_bundle(scene.store, state)
    assert scene.good in scene.log.versions()
