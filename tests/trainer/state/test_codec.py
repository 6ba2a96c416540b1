"""Checkpoints written by an earlier version (`tests/data`) are read, and continued, bit for bit."""

import json
import tarfile
from pathlib import Path

import pytest
import torch

from tests.trainer.support import same_tensors
from weir.contracts import ItemKeys, Store
from weir.contracts.checkpoint import CheckpointMark, read_checkpoint_mark
from weir.trainer.config import TrainerConfig
from weir.trainer.items.ids import unpack_ids
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.tensor_files import read_tensors
from weir.trainer.state.trainer_state import TrainerState

ARCHIVE = Path(__file__).parents[2] / "data" / "checkpoints-2.tar.gz"
SMALL = {
    "device": "cpu",
    "batch_size": 32,
    "tower": {"kind": "sasrec", "dimension": 8, "history_length": 6, "heads": 2},
    "features": {"buckets": 32},
    "negatives": {"uniform": 0},
}
SETTINGS = {
    # With a cache, item features and several half-lives.
    "cache": {"half_life_seconds": [3600.0, 36000.0], "loss": {"kind": "resampled_softmax", "cache": 16}},
    # With frequencies of users.
    "users": {"half_life_seconds": 7200.0, "loss": {"kind": "pointwise"}},
}


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, str]:
    """Return a store of earlier days and the folder of its checkpoint."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    store = Store(str(tmp_path / request.param))
    [path] = store.glob("checkpoints/*/CHECKPOINT.json")
    return store, path.rpartition("/")[0]


def restored(store: Store, folder: str, kind: str) -> tuple[CheckpointMark, TrainerState]:
    mark = read_checkpoint_mark(store, folder.partition("/")[2])
    tensors = read_tensors(store, folder, mark.tensors, mark.files)
    config = TrainerConfig.model_validate(SMALL | SETTINGS[kind])
    return mark, TrainerState.restore(config, tensors, torch.device("cpu"))


@pytest.mark.parametrize(("old", "kind"), [("cache", "cache"), ("users", "users")], indirect=["old"])
def test_an_old_checkpoint_is_restored_bit_for_bit(old: tuple[Store, str], kind: str) -> None:
    mark, state = restored(*old, kind)
    stored, found = read_tensors(*old, mark.tensors, mark.files), state.tensors()
    # Ids are no longer JSON text, everything else is as it was.
    ids = json.loads(stored.pop("table.ids").numpy().tobytes())
    sizes, data = (found.pop(f"table.id_{part}").numpy() for part in ("sizes", "bytes"))
    assert unpack_ids(sizes, data)[sizes >= 0].tolist() == ids
    assert unpack_ids(sizes, data)[state.table.live].tolist() == ids
    # So are the counts of rows: they were in the sketches alone.
    for name in [name for name in found if name.startswith("counts.")]:
        del found[name]
    # The order of names is part of it: the files hold one tensor after another.
    assert list(found) == list(stored)
    assert same_tensors(found, stored) == []


@pytest.mark.parametrize(("old", "kind"), [("cache", "cache"), ("users", "users")], indirect=["old"])
def test_an_old_checkpoint_is_continued_by_a_whole_one_and_that_by_deltas(old: tuple[Store, str], kind: str) -> None:
    (store, _), config = old, TrainerConfig.model_validate(SMALL | SETTINGS[kind])
    log = CheckpointLog(store, keep=9)
    config = log.continued(config, Workers())
    state = log.load(config, Workers())
    assert state is not None
    for parent in (False, True):
        state.position.batch += 1
        name = log.save(state, Workers())
        assert (read_checkpoint_mark(store, name).parent is not None) is parent
        loaded = log.load(config, Workers())
        assert loaded is not None
        assert same_tensors(state.tensors(), loaded.tensors()) == []


@pytest.mark.parametrize(("old", "kind"), [("cache", "cache"), ("users", "users")], indirect=["old"])
def test_an_old_checkpoint_keeps_position_evaluations_and_frequencies(old: tuple[Store, str], kind: str) -> None:
    mark, state = restored(*old, kind)
    assert (state.position.sequence, state.position.batch, state.position.step) == (2, 0, 14)
    assert state.position.trained_window == mark.trained_window == "19700101T010000Z-19700101T020000Z/0000"
    assert state.position.trained_sequence == 1
    assert [evaluation.recall for evaluation in state.recent] == [{10: 0.25}] * 2
    assert 3_600_000 < state.frequencies.time_ms < 7_200_000
    # Two windows of 200 events, about an hour apart.
    longest = state.frequencies.half_lives[-1]
    assert state.frequencies.total == pytest.approx(200 + 200 * 0.5 ** (3600 / longest), rel=0.01)
    counts = state.frequencies.counts(ItemKeys(state.table.keys[state.table.live]))
    torch.testing.assert_close(state.counts[state.live], torch.from_numpy(counts))
    assert (state.cache is not None, state.featured is not None) == (kind == "cache", kind == "cache")
    assert (state.users is not None) == (kind == "users")
