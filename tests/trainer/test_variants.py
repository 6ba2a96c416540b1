"""Variants of the settings, trained as lines of their own in one store."""

from pathlib import Path

import pytest

from tests.trainer.support import same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import MAIN, Champion, Comparison, line_of, log_of, variant_of
from weir.contracts.verification import verify
from weir.trainer.export import export
from weir.trainer.export.onnx_models import ExportError
from weir.trainer.ranks.workers import Workers
from weir.trainer.replay import replay_bundle
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog, CheckpointMismatchError
from weir.trainer.train import train

NEW = {"new": {"seed": 9, "optimizer": {"embedding_learning_rate": 0.02}}}


@pytest.fixture
def both(config: TrainerConfig) -> TrainerConfig:
    return TrainerConfig.model_validate({**config.model_dump(), "variants": NEW, "bundles_kept": 2})


def names(store: Store) -> set[str]:
    return {name for name in store.find() if not name.startswith(("windows/", "commits/"))}


def test_each_line_has_its_own_checkpoints_bundles_and_evaluations(
    store: Store, writer: WindowWriter, both: TrainerConfig
) -> None:
    synthetic(writer, windows=5)
    alone = train(store, both.of_variant(MAIN))
    before = {name: store.read(name) for name in names(store)}
    summary = train(store, both.of_variant("new"), variant="new")
    assert {name: store.read(name) for name in before} == before, "the other line is left as it was"
    assert all(name.startswith("variants/new/") for name in names(store) - before.keys())
    assert summary.bundle is not None
    assert variant_of(summary.bundle) == "new"
    assert log_of(store, "new").current() == summary.bundle
    assert BundleLog(store).current() == alone.bundle
    manifest = log_of(store, "new").manifest(summary.bundle)
    assert (manifest.variant, BundleLog(store).manifest(str(alone.bundle)).variant) == ("new", MAIN)
    assert manifest.recipe is not None
    assert "variants" not in manifest.recipe.settings
    # Of each line the newest are kept, with the chains that they are built on.
    assert len(line_of(store, "new").glob("evaluations/*/*.json")) == 5
    assert log_of(store, "new").chain(manifest)[-1] == manifest
    assert verify(store).findings == []


def test_variants_change_nothing_of_the_plain_line(
    tmp_path: Path, store: Store, writer: WindowWriter, both: TrainerConfig
) -> None:
    """The same bits, whether or not there are variants beside it."""
    synthetic(writer, windows=2)
    train(store, both.of_variant("new"), variant="new")
    with_variant = train(store, both.of_variant(MAIN)).bundle
    other = Store(str(tmp_path / "other"))
    synthetic(WindowWriter(other), windows=2)
    assert train(other, both.of_variant(MAIN)).bundle == with_variant


def test_a_line_continues_where_it_was(store: Store, writer: WindowWriter, both: TrainerConfig) -> None:
    config, line = both.of_variant("new"), line_of(store, "new")
    synthetic(writer, windows=2)
    train(store, config, variant="new")
    synthetic(writer, first=2, windows=2)
    assert train(store, config, variant="new").windows == 2
    parts = CheckpointLog(line).load(config, Workers())
    line.remove("checkpoints")
    train(store, config, variant="new")
    whole = CheckpointLog(line).load(config, Workers())
    assert parts is not None
    assert whole is not None
    assert same_tensors(parts.tensors(), whole.tensors()) == []


def test_other_settings_do_not_continue_a_line(store: Store, writer: WindowWriter, both: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    train(store, both.of_variant("new"), variant="new")
    changed = TrainerConfig.model_validate({**both.model_dump(), "variants": {"new": {"seed": 10}}})
    with pytest.raises(CheckpointMismatchError, match=r"variants/new/checkpoints/.*made with other settings"):
        train(store, changed.of_variant("new"), variant="new")


def test_a_bundle_of_a_line_is_exported_and_made_again(store: Store, writer: WindowWriter, both: TrainerConfig) -> None:
    synthetic(writer, windows=2)
    config = both.of_variant("new")
    with pytest.raises(ExportError, match=r"variants/new/checkpoints: holds no complete checkpoint"):
        export(store, config, "new")
    version = train(store, config, variant="new").bundle
    log_of(store, "new").store.remove("bundles")
    assert export(store, config, "new").version == version
    replay = replay_bundle(store, str(version))
    assert replay is not None
    assert replay.differences == ()


def test_a_trainer_promotes_its_line_by_the_verdict(store: Store, writer: WindowWriter, both: TrainerConfig) -> None:
    config = both.model_copy(update={"promote_by": "recall"})
    synthetic(writer, windows=2)
    for line in (MAIN, "new"):
        train(store, config.of_variant(line), variant=line)
    Comparison(champion=MAIN, challenger="new", differences=Running().add([1.0] * 500)).write(store)
    synthetic(writer, first=2, windows=1)
    train(store, config.of_variant(MAIN))
    assert Champion.read(store).variant == MAIN
    train(store, config.of_variant("new"), variant="new")
    assert Champion.read(store).variant == "new"
