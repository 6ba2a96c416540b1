import logging
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.contracts.bundles.checkpoint import mark_path, read_checkpoint_mark
from weir.contracts.storage.documents import write_document
from weir.contracts.verification import verify
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog, CheckpointMismatchError, DamagedCheckpointError
from weir.trainer.state.tensor_files import write_tensors
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    state = absorbed(store, config)
    train_step(state, batches_of(store, state)[0], Workers())
    return state


def test_what_is_saved_is_loaded_bit_for_bit(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
    assert loaded.position == state.position


def test_a_fresh_state_can_be_saved_too(store: Store, config: TrainerConfig) -> None:
    CheckpointLog(store).save(TrainerState.fresh(config), Workers())
    loaded = CheckpointLog(store).load(config, Workers())
    assert loaded is not None
    assert loaded.frequencies.sketch is None


def test_the_last_two_are_kept_with_what_they_continue_and_ruins_are_cleared(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    names = []
    for batch in range(4):
        state.position.batch = batch
        names.append(log.save(state, Workers()))
        store.write("checkpoints/0000000000-ruin/tensors-00000.bin", b"half")
    assert log.names() == [names[0], *names[-2:]]
    log.save(state, Workers())
    state.position.batch = 9
    log.save(state, Workers())
    assert len(store.glob("checkpoints/*")) == 3
    # Nothing continues the first one once two whole ones have followed.
    for batch in (10, 11):
        state.embeddings.touched.mark(np.arange(state.table.capacity))
        state.position.batch = batch
        names.append(log.save(state, Workers()))
    assert log.names() == names[-2:]


def test_an_incomplete_checkpoint_is_never_loaded(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    first = state.position.step
    train_step(state, batches_of(store, state)[1], Workers())
    newest = log.save(state, Workers())
    # Killed before the last file: everything is there but the mark.
    store.remove(f"checkpoints/{newest}/CHECKPOINT.json")
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert loaded.position.step == first
    assert log.save(state, Workers()) == newest
    again = log.load(state.config, Workers())
    assert again is not None
    assert torch.equal(again.embeddings.weight, state.embeddings.weight)


def test_without_a_checkpoint_there_is_no_state(store: Store, config: TrainerConfig) -> None:
    assert CheckpointLog(store).load(config, Workers()) is None


def test_other_settings_are_refused_by_name_with_both_values(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    plain = state.config.model_dump()
    plain["tower"]["dimension"] = 16
    plain["admit_after"] = 3.0
    with pytest.raises(CheckpointMismatchError) as error:
        log.load(TrainerConfig.model_validate(plain), Workers())
    assert "tower.dimension was 8 and is now 16" in str(error.value)
    assert "admit_after was 1.0 and is now 3.0" in str(error.value)
    assert "batch_size" not in str(error.value)
    free = TrainerConfig.model_validate({**state.config.model_dump(), "export_every_windows": 9, "metrics_port": 1})
    assert log.load(free, Workers()) is not None


def test_a_default_that_has_changed_leaves_a_store_as_it_is(
    store: Store, state: TrainerState, caplog: pytest.LogCaptureFixture
) -> None:
    """The state's settings are given; a later version's user gives some of them, and its defaults are others."""
    log, workers = CheckpointLog(store), Workers()
    log.save(state, workers)
    assert state.config.tower.dimension != TrainerConfig().tower.dimension
    given = {"seed": state.config.seed, "tower": {"layers": state.config.tower.layers}}
    with caplog.at_level(logging.INFO):
        config = log.continued(TrainerConfig.model_validate(given), workers)
    assert config.defining() == state.config.defining()
    assert "tower.dimension is 8, as in the checkpoint: the default is 64 now" in caplog.messages
    loaded = log.load(config, workers)
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
    other = log.continued(TrainerConfig(tower=TowerConfig(layers=state.config.tower.layers + 1)), workers)
    with pytest.raises(CheckpointMismatchError, match=r"tower\.layers was"):
        log.load(other, workers)


def test_a_setting_that_came_later_is_refused_only_where_it_is_given(store: Store, state: TrainerState) -> None:
    log, workers = CheckpointLog(store), Workers()
    path = mark_path(log.save(state, workers))
    mark = read_checkpoint_mark(store, log.names()[-1])
    settings = {name: value for name, value in mark.settings.items() if name != "features.buckets"}
    write_document(store, path, mark.model_copy(update={"settings": settings}))
    plain = state.config.model_dump()
    plain.pop("features")
    config = log.continued(TrainerConfig.model_validate(plain), workers)
    assert log.load(config, workers) is not None
    given = log.continued(TrainerConfig.model_validate({**plain, "features": {"buckets": 8}}), workers)
    with pytest.raises(CheckpointMismatchError, match=r"features\.buckets was 'absent' and is now 8"):
        log.load(given, workers)


def test_without_a_checkpoint_settings_are_as_given(store: Store) -> None:
    config = TrainerConfig()
    assert CheckpointLog(store).continued(config, Workers()) is config


Damage = Callable[[Store, str, random.Random], str]
"""Harms a file of a folder and returns the file's name."""


def flip_a_bit(store: Store, folder: str, draw: random.Random) -> str:
    # Every file alike, however small: most bytes are parameters.
    name = draw.choice(store.glob(f"{folder}/*"))
    data = bytearray(store.read(name))
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    store.write(name, bytes(data))
    return name


def truncate(store: Store, folder: str, draw: random.Random) -> str:
    name = draw.choice(store.glob(f"{folder}/*"))
    data = store.read(name)
    store.write(name, data[: draw.randrange(len(data))])
    return name


def lose(store: Store, folder: str, draw: random.Random) -> str:
    name = draw.choice(store.glob(f"{folder}/*.bin"))
    store.remove(name)
    return name


def swap(store: Store, folder: str, draw: random.Random) -> str:
    # The last file is shorter: the others pass for each other by size.
    one, other = sorted(draw.sample(store.glob(f"{folder}/*.bin")[:-1], 2))
    data = store.read(one), store.read(other)
    store.write(one, data[1])
    store.write(other, data[0])
    return one


@pytest.mark.parametrize("share", [0.2, 1.0], ids=["delta", "whole"])
@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, 300), (truncate, 30), (lose, 5), (swap, 5)])
def test_every_damage_is_refused_with_the_name_of_the_file(
    store: Store, state: TrainerState, damage: Damage, times: int, share: float
) -> None:
    log = CheckpointLog(store)
    log.save(state, Workers())
    state.embeddings.touched.mark(np.arange(round(share * state.table.capacity)))
    state.position.batch += 1
    with pytest.MonkeyPatch.context() as patch:
        small = partial(write_tensors, file_bytes=1 << (14 if share == 1 else 12))
        patch.setattr("weir.trainer.state.checkpoint.write_tensors", small)
        folder = f"checkpoints/{log.save(state, Workers())}"
    assert (read_checkpoint_mark(store, folder.split("/")[1]).parent is None) == (share == 1)
    whole = {name: store.read(name) for name in store.glob(f"{folder}/*")}
    assert len(whole) > 4
    for seed in range(times):
        name = damage(store, folder, random.Random(seed))
        with pytest.raises(DamagedCheckpointError) as refusal:
            log.load(state.config, Workers())
        assert refusal.value.path == store.path(name), seed
        assert str(refusal.value).endswith(f"; remove {folder} to continue from the one before")
        assert "\n" not in str(refusal.value)
        restored(store, whole)
    assert log.load(state.config, Workers()) is not None
    # The remedy is one.
    damage(store, folder, random.Random(0))
    store.remove(folder)
    before = log.load(state.config, Workers())
    assert before is not None
    assert before.position.batch == state.position.batch - 1


def restored(store: Store, files: dict[str, bytes]) -> None:
    """Write files again that are not as they were."""
    for name, data in files.items():
        if not store.exists(name) or store.read(name) != data:
            store.write(name, data)


@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, 30), (truncate, 10), (lose, 3)])
def test_damage_to_what_others_continue_names_all_that_are_lost_with_it(
    store: Store, state: TrainerState, damage: Damage, times: int
) -> None:
    log, names = CheckpointLog(store, keep=4), []
    for batch in range(4):
        state.position.batch = batch
        if batch == 1:
            state.embeddings.touched.mark(np.arange(state.table.capacity))
        names.append(log.save(state, Workers()))
    folders = [f"checkpoints/{name}" for name in names]
    whole = {name: store.read(name) for name in store.glob("checkpoints/*/*")}
    for seed in range(times):
        name = damage(store, folders[1], random.Random(seed))
        with pytest.raises(DamagedCheckpointError) as refusal:
            log.load(state.config, Workers())
        assert refusal.value.path == store.path(name)
        assert str(refusal.value).endswith(f"; remove {' and '.join(folders[1:])} to continue from the one before")
        assert name in {finding.name for finding in verify(store).findings}
        restored(store, whole)
    for folder in folders[2:]:
        store.remove(folder)
    store.remove(folders[0])
    damage(store, folders[1], random.Random(0))
    with pytest.raises(DamagedCheckpointError, match=f"; remove {folders[1]}, and all windows are trained on again"):
        log.load(state.config, Workers())


@pytest.mark.parametrize("part", ["CHECKPOINT.json", ""], ids=["its mark", "all of it"])
def test_what_is_no_longer_there_is_not_continued(store: Store, state: TrainerState, part: str) -> None:
    log = CheckpointLog(store)
    first = log.save(state, Workers())
    store.remove(f"checkpoints/{first}/{part}".rstrip("/"))
    state.position.batch += 1
    assert read_checkpoint_mark(store, log.save(state, Workers())).parent is None
    # Nor is one of another store.
    other = Store(store.path("other"))
    state.position.batch += 1
    assert read_checkpoint_mark(other, CheckpointLog(other).save(state, Workers())).parent is None
    assert log.load(state.config, Workers()) is not None


def test_a_checkpoint_whose_beginning_was_removed_is_refused_with_what_to_do(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    names = []
    for batch in range(3):
        state.position.batch = batch
        names.append(log.save(state, Workers()))
    store.remove(f"checkpoints/{names[0]}")
    folders = [f"checkpoints/{name}" for name in names[1:]]
    with pytest.raises(DamagedCheckpointError) as refusal:
        log.load(state.config, Workers())
    assert str(refusal.value).endswith(f"; remove {' and '.join(folders)}, and all windows are trained on again")


class Planted:
    """Leaves a file behind wherever it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_a_planted_pickle_is_never_executed(store: Store, state: TrainerState, tmp_path: Path) -> None:
    log, trace = CheckpointLog(store), tmp_path / "executed"
    folder = f"checkpoints/{log.save(state, Workers())}"
    bomb = pickle.dumps(Planted(trace))
    pickle.loads(bomb)  # noqa: S301 - to show that it would be seen
    assert trace.exists()
    trace.unlink()
    # Beside what is read; loading looks at neither.
    for name in (".metadata", "__0_0.distcp"):
        store.write(f"{folder}/{name}", bomb)
    assert log.load(state.config, Workers()) is not None
    mark = read_checkpoint_mark(store, folder.split("/")[1])
    sized = bomb + bytes(mark.files[0].size - len(bomb))
    entry = store.write(f"{folder}/{mark.files[0].name}", sized)
    with pytest.raises(DamagedCheckpointError):
        log.load(state.config, Workers())
    # A writer who also forges the mark changes parameters, and still runs nothing.
    write_document(store, f"{folder}/CHECKPOINT.json", mark.model_copy(update={"files": (entry, *mark.files[1:])}))
    with suppress(Exception):
        log.load(state.config, Workers())
    assert not trace.exists()


@pytest.mark.parametrize("number", [5, 8])
def test_another_format_is_refused_and_not_taken_for_damage(store: Store, state: TrainerState, number: int) -> None:
    log = CheckpointLog(store)
    path = mark_path(log.save(state, Workers()))
    mark = read_checkpoint_mark(store, log.names()[-1])
    write_document(store, path, mark.model_copy(update={"format": number}))
    with pytest.raises(CheckpointMismatchError, match=f"has format {number}"):
        log.load(state.config, Workers())
    assert log.continued(state.config, Workers()) is state.config


def test_the_same_store_by_url_holds_checkpoints_too(state: TrainerState) -> None:
    # No local path: what an object store offers, and nothing else.
    remote = Store("memory://checkpoints-of-a-test")
    log = CheckpointLog(remote)
    log.save(state, Workers())
    loaded = log.load(state.config, Workers())
    assert loaded is not None
    assert same_tensors(state.tensors(), loaded.tensors()) == []
