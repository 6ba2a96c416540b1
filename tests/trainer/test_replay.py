import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.contracts.panes import retire_before
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, BundleManifest, CommitLog, Store, WindowLog
from weir.contracts.bundles.manifest import Recipe, Stretch
from weir.contracts.bundles.variants import MAIN
from weir.trainer.export.bundle import export_bundle
from weir.trainer.ranks.workers import Workers
from weir.trainer.replay import ReplayError, replay_bundle, retrained
from weir.trainer.settings.trainer import RescoringConfig, TrainerConfig
from weir.trainer.state.progress import continued, software
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.learner import Learner
from weir.trainer.train import train


def trained(store: Store, config: TrainerConfig, exposed: int = 0) -> list[str]:
    """Train on a large window and two small ones, a bundle after each; return the versions."""
    writer = WindowWriter(store)
    said = exposed > 0
    synthetic(writer, windows=1, events=3000, items=600, users=300, exposed=exposed, said=said)
    synthetic(writer, first=1, windows=2, events=30, items=600, users=300, exposed=exposed, said=said)
    plain = config.model_dump() | {"bundles_kept": 20, "gate_tolerance": 1.0}
    train(store, TrainerConfig.model_validate(plain))
    return BundleLog(store).versions()


def listed(store: Store) -> set[Path]:
    return set(Path(store.path("")).rglob("*"))


@pytest.mark.parametrize("exposed", [0, 1])
def test_every_bundle_of_a_run_is_made_again_bit_for_bit(store: Store, config: TrainerConfig, exposed: int) -> None:
    negatives = config.negatives.model_copy(update={"exposed": exposed})
    rescoring = RescoringConfig(kind="mixture_of_logits" if exposed else "none", dimension=8)
    versions = trained(store, config.model_copy(update={"negatives": negatives, "rescoring": rescoring}), exposed)
    manifests = [BundleLog(store).manifest(one) for one in versions]
    assert {one.parent is None for one in manifests} == {True, False}, "complete ones and deltas"
    before = listed(store)
    for version in versions:
        found = replay_bundle(store, version)
        assert found is not None
        assert (found.differences, found.reasons) == ((), ())
        assert found.items == BundleLog(store).manifest(version).items
    assert listed(store) == before, "nothing is written"


def test_what_differs_is_said_and_why(store: Store, config: TrainerConfig) -> None:
    """Another seed stands for whatever nobody noted."""
    newest = trained(store, config)[-1]
    log = BundleLog(store)
    manifest = log.manifest(newest)
    assert manifest.recipe is not None
    other = manifest.recipe.stretches[0].model_copy(update={"software": {**software(), "torch": "1.0"}})
    recipe = Recipe(settings={**manifest.recipe.settings, "seed": 1}, stretches=(other,))
    log.commit(manifest.model_copy(update={"recipe": recipe}))
    found = replay_bundle(store, newest)
    assert found is not None
    kinds = [re.sub(r"\d[\d,.e-]*", "N", one) for one in found.differences[:3]]
    assert kinds == [
        "N of N embeddings differ, by N at most",
        "N of N vectors differ, by N at most",
        "the user tower differs",
    ]
    assert found.differences[3].startswith("the state differs: its bundle would be named 00000002-")
    assert found.reasons == (f"torch is {software()['torch']}, from step 0 on it was 1.0",)


@pytest.mark.parametrize(
    ("stretches", "problem"),
    [
        ([], "does not say how it was trained"),
        ([(0, 1), (7, 2)], r"of ranks x threads \(1 x 1 from step 0, 2 x 1 from step 7\)"),
        ([(0, 2)], "was trained by 2 ranks, here are 1"),
    ],
)
def test_what_cannot_be_made_again_is_refused(
    store: Store, config: TrainerConfig, stretches: list[tuple[int, int]], problem: str
) -> None:
    newest, log = trained(store, config)[-1], BundleLog(store)
    manifest = log.manifest(newest)
    noted = tuple(
        Stretch(sequence=0, step=step, ranks=ranks, threads=1, device="cpu", software=software())
        for step, ranks in stretches
    )
    recipe = Recipe(settings=config.recipe(), stretches=noted)
    log.commit(manifest.model_copy(update={"recipe": recipe}))
    with pytest.raises(ReplayError, match=problem):
        replay_bundle(store, newest)


def test_a_bundle_of_the_middle_of_a_window_is_made_again(store: Store, config: TrainerConfig) -> None:
    """As one that is exported where a signal has stopped training."""
    synthetic(WindowWriter(store), windows=2, events=300)
    state = TrainerState.fresh(config)
    state.stretches = continued((), state.position, Workers())
    recipe = Recipe(settings=config.recipe(), stretches=state.stretches)
    wanted = SimpleNamespace(version="00000001-0000000014-x", trained_sequence=1, variant=MAIN)
    middle = retrained(store, cast(BundleManifest, wanted), recipe, Workers())
    assert (middle.position.step, middle.position.batch > 0) == (14, True)
    middle.stretches = state.stretches
    version = export_bundle(store, middle).version
    found = replay_bundle(store, version)
    assert found is not None
    assert found.differences == ()


def test_a_run_that_ended_and_went_on_is_one_stretch(store: Store, config: TrainerConfig) -> None:
    writer = WindowWriter(store)
    for window in range(2):
        synthetic(writer, first=window, windows=1, events=200)
        train(store, config)
    newest = BundleLog(store).versions()[-1]
    recipe = BundleLog(store).manifest(newest).recipe
    assert recipe is not None
    assert len(recipe.stretches) == 1
    found = replay_bundle(store, newest)
    assert found is not None
    assert (found.windows, found.differences) == (2, ())


def fails_before_training(store: Store, version: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Replay a bundle that cannot be made again; return why."""

    def trains(*_: object) -> None:
        pytest.fail("it trains before it has looked")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "process_window", trains)
        with pytest.raises(ReplayError) as refused:
            replay_bundle(store, version)
    (said,) = refused.value.explain()
    assert version in said
    assert "--store" not in said
    return said


def test_retired_windows_are_named_before_anything_is_trained(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = trained(store, config)[-1]
    retire_before(store, 1, 3_600_000)
    said = fails_before_training(store, newest, monkeypatch)
    assert "was trained from pane 0 on, and pane 0 has retired" in said


def test_windows_of_another_log_are_refused_before_anything_is_trained(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = trained(store, config)[-1]
    store.remove("commits/HEAD")
    store.remove(CommitLog.name(2))
    writer = WindowWriter(store)
    writer.sequence = 2
    synthetic(writer, first=7, windows=2, events=30)
    assert "cannot be made again from other windows" in fails_before_training(store, newest, monkeypatch)


def test_each_damaged_file_of_a_bundle_and_its_chain_is_named_before_anything_is_trained(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BundleLog(store)
    newest = log.manifest(trained(store, config)[-1])
    parts = log.chain(newest)
    assert len(parts) > 1
    for name in [f"{part.folder}/{entry.name}" for part in parts for entry in part.files]:
        data = store.read(name)
        store.write(name, data[:-1] + bytes([data[-1] ^ 1]))
        assert f"{name}: has checksum" in fails_before_training(store, newest.version, monkeypatch)
        store.remove(name)
        assert f"{name}: the manifest lists it" in fails_before_training(store, newest.version, monkeypatch)
        store.write(name, data)


def test_a_damaged_window_is_named_without_a_hint_that_is_wrong(store: Store, config: TrainerConfig) -> None:
    newest = trained(store, config)[-1]
    pane = WindowLog(store).committed()[2]
    name = f"{pane.folder}/{pane.file('sketch.bin').name}"
    store.write(name, store.read(name)[:-1])
    with pytest.raises(ReplayError, match=name) as refused:
        replay_bundle(store, newest)
    assert "--store" not in refused.value.explain()[0]
