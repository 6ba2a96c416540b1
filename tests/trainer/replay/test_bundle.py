import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, BundleManifest, Store
from weir.contracts.recipe import Recipe, Stretch
from weir.contracts.variants import MAIN
from weir.trainer.config import RescoringConfig, TrainerConfig
from weir.trainer.export.bundle import export_bundle
from weir.trainer.ranks.workers import Workers
from weir.trainer.replay.bundle import replay_bundle
from weir.trainer.replay.retrained import ReplayError, retrained
from weir.trainer.state.stretches import continued, software
from weir.trainer.state.trainer_state import TrainerState
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
