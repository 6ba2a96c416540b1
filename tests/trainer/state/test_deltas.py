"""Random sequences of windows, steps, checkpoints and kills: what is restored is what was saved, bit for bit."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.support import absorb, batches_of, same_tensors
from tests.trainer.windows import FEATURES, WindowWriter, synthetic
from weir.contracts import Store, WindowLog
from weir.contracts.bundles.checkpoint import read_checkpoint_chain
from weir.contracts.verification import verify
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step

SMALL: dict[str, Any] = {
    "device": "cpu",
    "batch_size": 16,
    "tower": {"dimension": 4, "history_length": 3, "heads": 2},
    "features": {"buckets": 8},
    "negatives": {"uniform": 4},
    "item_ttl_seconds": 7000.0,
    "half_life_seconds": (3600.0, 36000.0),
}
KINDS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "cache": {"negatives": {"uniform": 0}, "loss": {"kind": "resampled_softmax", "cache": 8}},
    "users": {"negatives": {"uniform": 0}, "loss": {"kind": "pointwise"}},
}
ACTS = st.lists(st.sampled_from(["step", "step", "window", "save", "save", "kill"]), min_size=4, max_size=30)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Windows of few items; one brings features, one more items than the table has rows."""
    store = Store(str(tmp_path_factory.mktemp("windows")))
    writer = WindowWriter(store)
    synthetic(writer, windows=2, events=60)
    synthetic(writer, first=2, windows=2, events=60, items=40, seed=1)
    writer.features = FEATURES
    synthetic(writer, first=4, windows=2, events=60, seed=2)
    writer.commit(
        [f"u{n}" for n in range(1100)], [f"much {n}" for n in range(1100)], torch.arange(1100).numpy() + 2**25
    )
    synthetic(writer, first=10, windows=3, events=60, seed=3)
    return store


@dataclass
class Life:
    """A state somewhere in the windows, with what its newest checkpoint must hold."""

    windows: Store
    checkpoints: CheckpointLog
    state: TrainerState
    saved: dict[str, torch.Tensor] | None = None

    def window(self) -> None:
        log = WindowLog(self.windows)
        if self.state.position.sequence < len(log.committed()):
            absorb(self.state, log, log.committed()[self.state.position.sequence])
            self.state.position.sequence += 1
            self.state.position.batch = 0

    def step(self) -> None:
        if self.state.position.sequence:
            dealt = batches_of(self.windows, self.state, self.state.position.sequence - 1)
            if dealt:
                train_step(self.state, dealt[self.state.position.batch % len(dealt)], Workers())

    def save(self) -> None:
        # A name is a position: without progress, nothing is written.
        self.state.position.step += 1
        name = self.checkpoints.save(self.state, Workers())
        assert self.checkpoints.names()[-1] == name
        self.saved = {name: one.detach().clone() for name, one in self.state.tensors().items()}

    def kill(self) -> None:
        config = self.state.config
        self.state = self.checkpoints.load(config, Workers()) or TrainerState.fresh(config)
        if self.saved is not None:
            assert same_tensors(self.state.tensors(), self.saved) == []


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(acts=ACTS, keep=st.integers(1, 3))
def test_what_is_restored_is_what_was_saved(
    windows: Store, tmp_path_factory: pytest.TempPathFactory, kind: str, acts: list[str], keep: int
) -> None:
    store = Store(str(tmp_path_factory.mktemp("checkpoints")))
    config = TrainerConfig.model_validate(SMALL | KINDS[kind])
    life = Life(windows, CheckpointLog(store, keep), TrainerState.fresh(config))
    for act in [*acts, "save", "kill"]:
        getattr(life, act)()
    names = life.checkpoints.names()
    # Every checkpoint that is left can be read with all that it continues, and is what it was.
    for name in names:
        assert {ref.name for ref, _ in read_checkpoint_chain(store, name)} <= set(names)
    assert [finding for finding in verify(store).findings if finding.name.startswith("checkpoints/")] == []


def test_a_window_after_another_is_a_delta_until_the_table_has_changed(windows: Store, tmp_path: Any) -> None:
    store = Store(str(tmp_path))
    life = Life(windows, CheckpointLog(store, 9), TrainerState.fresh(TrainerConfig.model_validate(SMALL)))
    lengths = []
    for _ in range(9):
        life.window()
        life.step()
        life.save()
        lengths.append(len(read_checkpoint_chain(store, life.checkpoints.names()[-1])))
        life.kill()
    # Features come with the fifth window, rows with the seventh: both make another table. With the ninth, half of the
    # rows are taken from items that are gone.
    assert [length > 1 for length in lengths] == [False, True, True, True, False, True, False, True, False]
