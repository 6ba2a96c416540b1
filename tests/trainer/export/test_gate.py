""""""

import logging
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.contracts.bundles.test_bundle_log import write
from tests.trainer.support import absorb, batches_of, collapse, drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Pin, Store, WindowLog, WindowManifest, Withdrawal
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import CHAMPION, MAIN, Champion, Comparison, crown, log_of, version_of
from weir.contracts.storage.documents import write_document
from weir.trainer.export import export_bundle
from weir.trainer.export.exporter import Exporter
from weir.trainer.export.gate import CanaryEvaluation, CanaryReview, Evidence, PairedGate, PromotionCheck
from weir.trainer.export.servable import RecentCases
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import SharedWindow
from weir.trainer.step.step import train_step
from weir.trainer.stream.metrics import TrainerMetrics

GATE = PairedGate(cutoff=20, tolerance=0.5)


def evidence(cases: int, new: float, old: float) -> Evidence:
    """Hits at random, the two bundles' independent of each other."""
    draw = np.random.default_rng(1)
    return Evidence.of(draw.random(cases) < new, draw.random(cases) < old)


@pytest.mark.parametrize(
    ("new", "old", "promoted"),
    [(0.40, 0.40, True), (0.25, 0.40, True), (0.05, 0.40, False), (0.0, 0.40, False), (0.9, 0.4, True), (0, 0, True)],
)
@pytest.mark.parametrize("cases", [200, 1000])
def test_a_fall_beyond_the_tolerance_is_held_and_rolled_back(
    cases: int, new: float, old: float, promoted: bool
) -> None:
    found = evidence(cases, new, old)
    before, after = GATE.before(None, found), GATE.after(found)
    assert after is not None
    assert before.promoted is after.promoted is promoted
    assert before.sentence.startswith("promoted: " if promoted else "held: ")
    assert after.sentence.startswith("confirmed: " if promoted else "rolled back: ")
    assert f"recall@20 is {(found.both + found.new_only) / cases:.4f}, of the current bundle" in before.sentence
    assert f"on {cases} cases" in before.sentence


def test_few_cases_decide_nothing() -> None:
    few = evidence(199, 0.0, 0.9)
    assert GATE.before(None, few).promoted
    assert GATE.before(None, few).sentence == "promoted: 199 cases, 200 are compared"
    assert GATE.after(few) is None
    assert GATE.after(Evidence()) is None


def test_what_is_not_sound_is_held_whatever_it_hits() -> None:
    verdict = GATE.before("tower.bias contains NaN", evidence(500, 0.9, 0.1))
    assert (verdict.promoted, verdict.sentence) == (False, "held: tower.bias contains NaN")
    assert not GATE.before("tower.bias contains NaN", Evidence()).promoted


def test_the_tolerance_and_the_cutoff_come_from_the_settings() -> None:
    gate = PairedGate.of(TrainerConfig(evaluation_k=(1, 5, 20), gate_tolerance=0.1))
    assert gate == PairedGate(5, 0.1)
    slightly = evidence(1000, 0.2, 0.4)
    assert GATE.before(None, slightly).promoted
    assert not gate.before(None, slightly).promoted


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=200, max_size=400), st.floats(0, 1))
def test_the_bound_is_that_of_the_paired_differences(hits: list[tuple[bool, bool]], tolerance: float) -> None:
    """Against the same mean and standard error, computed case by case."""
    new, old = (np.array(column) for column in zip(*hits, strict=True))
    x = new - (1 - tolerance) * old
    bound = x.mean() + 3 * x.std() / math.sqrt(len(x))
    found = Evidence.of(new, old)
    assert found.cases == len(x)
    if abs(bound) > 1e-9:
        assert PairedGate(20, tolerance).before(None, found).promoted is bool(bound > 0)


@given(st.floats(0.01, 0.9), st.integers(0, 2**32 - 1))
def test_a_bundle_as_good_as_the_other_is_not_held(recall: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = Evidence.of(draw.random(200) < recall, draw.random(200) < recall)
    assert GATE.before(None, found).promoted


def test_evidence_is_pooled_by_adding() -> None:
    whole, parts = np.random.default_rng(0).random((2, 300)) < 0.4, (slice(0, 100), slice(100, 300))
    pooled = [Evidence.of(whole[0][part], whole[1][part]) for part in parts]
    assert pooled[0] + pooled[1] == Evidence.of(*whole)


@pytest.mark.parametrize(("difference", "promoted"), [(0.5, True), (-0.5, False), (0.0, None)])
def test_a_challenger_is_promoted_by_the_interval_of_the_difference(difference: float, promoted: bool | None) -> None:
    differences = Running().add(np.full(500, (difference + 1) / 2))
    verdict = GATE.challenged(Comparison(champion="main", challenger="new", differences=differences), "recall")
    if promoted is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.promoted is promoted
        assert verdict.sentence.startswith("better: " if promoted else "worse: ")
    nothing = Comparison(champion="main", challenger="new", differences=differences)
    assert GATE.challenged(nothing, "clicks") is None


CONFIG = TrainerConfig(promote_by="recall")


def compared(store: Store, difference: float, champion: str = MAIN) -> None:
    """Store a comparison in which every user of 1,000 found the challenger better by so much."""
    for variant in (MAIN, "new"):
        write(log_of(store, variant), version_of("0001", variant), created_at=1.0)
        log_of(store, variant).promote(version_of("0001", variant))
    differences = Running().add(np.full(1000, (difference + 1) / 2))
    Comparison(champion=champion, challenger="new", differences=differences).write(store)


def challenge(store: Store, config: TrainerConfig = CONFIG, variant: str = "new") -> PromotionCheck:
    return PromotionCheck(store, config, PairedGate.of(config), variant)


def test_a_better_challenger_becomes_the_champion_once(store: Store) -> None:
    compared(store, 0.5)
    champion = challenge(store).decide()
    assert champion is not None
    assert (champion.variant, champion.beaten, champion.by) == ("new", (MAIN,), "the trainer")
    assert champion.verdict.startswith("better: recall@20 as served of new")
    assert Champion.read(store) == champion
    assert challenge(store).decide() is None


@pytest.mark.parametrize("difference", [0.0, -0.5])
def test_one_that_is_not_better_does_not(store: Store, difference: float) -> None:
    compared(store, difference)
    assert challenge(store).decide() is None
    assert not store.exists(CHAMPION)


def test_without_the_setting_an_operator_decides(store: Store) -> None:
    compared(store, 0.5)
    assert challenge(store, TrainerConfig()).decide() is None
    assert challenge(store, TrainerConfig(promote_by="clicks")).decide() is None
    assert not store.exists(CHAMPION)


@pytest.mark.parametrize("line", [MAIN, "new"])
def test_a_pin_of_either_line_keeps_the_champion(store: Store, line: str) -> None:
    compared(store, 0.5)
    log_of(store, line).set_pin(Pin(version=version_of("0001", line), by="ann@shop", at=1.0))
    assert challenge(store).decide() is None
    log_of(store, line).lift_pin()
    assert challenge(store).decide() is not None


def test_a_comparison_with_another_champion_decides_nothing(store: Store) -> None:
    compared(store, 0.5, champion="older")
    assert challenge(store).decide() is None


def test_one_that_was_replaced_does_not_come_back_by_old_evidence(store: Store) -> None:
    compared(store, 0.5)
    assert challenge(store).decide() is not None
    crown(store, MAIN, "ann@shop", "it was a mistake")
    assert challenge(store).decide() is None


def test_it_looks_every_few_seconds(store: Store) -> None:
    now = 100.0
    made = PromotionCheck(store, CONFIG, PairedGate.of(CONFIG), "new", clock=lambda: now)
    assert made.decide() is None
    compared(store, 0.5)
    assert made.decide() is None
    now += 5
    assert made.decide() is not None


def test_damage_is_logged_once_and_stops_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.write("variants/new/COMPARISON.json", b"{}")
    now = 0.0
    made = PromotionCheck(store, CONFIG, PairedGate.of(CONFIG), "new", clock=lambda: now)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert made.decide() is None
            now += 10
    assert caplog.text.count("cannot decide whether to promote new") == 1


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
        return CanaryReview(self.store, PairedGate.of(self.config)).review(window, cases)

    def served(self) -> str | None:
        return self.log.current()


@pytest.fixture(scope="module")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Train once; return the folder of the store, and the versions of the good and the bad bundle."""
    torch.set_num_threads(1)
    store = Store(str(tmp_path_factory.mktemp("trial")))
    writer = WindowWriter(store)
    synthetic(writer, windows=2, events=600)
    state = TrainerState.fresh(CANARY_CONFIG)
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


CANARY_CONFIG = TrainerConfig.model_validate(
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
    made = Scene(store, CANARY_CONFIG, good, bad)
    write_document(store, "bundles/TRIAL.json", CanaryEvaluation(reference=good))
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
    made = Exporter(scene.store, CANARY_CONFIG, TrainerMetrics(registry))
    for window in scene.unseen[:2]:
        made.review(window, SharedWindow.read(WindowLog(scene.store), window, CANARY_CONFIG, Workers()))
    assert registry.get_sample_value("weir_trainer_bundle_rollbacks_total") == 1
    assert f"bundle {scene.bad} is withdrawn, {scene.good} is served again: rolled back" in caplog.text


def test_a_bundle_that_holds_its_own_is_confirmed(scene: Scene) -> None:
    write_document(scene.store, "bundles/TRIAL.json", CanaryEvaluation(reference=scene.bad))
    scene.log.promote(scene.good)
    assert scene.review(scene.unseen[0]) is None
    assert scene.served() == scene.good
    assert CanaryEvaluation.read(scene.store) == CanaryEvaluation(reference=scene.good)


def test_small_windows_are_pooled_until_they_decide(scene: Scene) -> None:
    small = scene.unseen[2:]
    assert [scene.review(window) for window in small[:3]] == [None] * 3
    assert scene.served() == scene.bad
    assert CanaryEvaluation.read(scene.store).evidence.cases == 150
    # A window counts once, however often a run that is killed comes by.
    assert scene.review(small[2]) is None
    assert CanaryEvaluation.read(scene.store).evidence.cases == 150
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
    assert CanaryEvaluation.read(scene.store).evidence.cases == 0


@pytest.mark.parametrize("moment", ["write_document", "withdraw", "publish"])
def test_a_run_killed_at_any_moment_of_a_rollback_completes_it(
    scene: Scene, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target = (
            "weir.trainer.export.gate.write_document"
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
    state = TrainerState.fresh(CANARY_CONFIG)
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
    assert CanaryEvaluation.read(scene.store).reference == scene.bad


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
    state = TrainerState.fresh(CANARY_CONFIG)
    absorb(state, WindowLog(scene.store), WindowLog(scene.store).committed()[0])
    for step in range(6):
        state.position.step = step
        export_bundle(scene.store, state)
    assert scene.good in scene.log.versions()
