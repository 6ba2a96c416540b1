import pytest
import torch

from contracts import Store
from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from trainer.checkpoint import CheckpointLog, CheckpointMismatchError, DamagedCheckpointError
from trainer.config import TrainerConfig
from trainer.distributed import Workers
from trainer.state import TrainerState
from trainer.step import train_step


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


def test_the_last_two_are_kept_and_ruins_are_cleared(store: Store, state: TrainerState) -> None:
    log = CheckpointLog(store)
    names = []
    for batch in range(4):
        state.position.batch = batch
        names.append(log.save(state, Workers()))
        store.write("checkpoints/0000000000-ruin/__0_0.distcp", b"half")
    assert log.names() == names[-2:]
    log.save(state, Workers())
    state.position.batch = 9
    log.save(state, Workers())
    assert len(store.glob("checkpoints/*")) == 2


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


def test_a_damaged_checkpoint_is_named_with_a_way_out(store: Store, state: TrainerState) -> None:
    name = CheckpointLog(store).save(state, Workers())
    for file in store.glob(f"checkpoints/{name}/*.distcp"):
        store.write(file, store.read(file)[:-100])
    with pytest.raises(DamagedCheckpointError, match="remove the folder to continue from the one before") as refusal:
        CheckpointLog(store).load(state.config, Workers())
    assert refusal.value.path == store.path(f"checkpoints/{name}")
    assert "\n" not in str(refusal.value)
