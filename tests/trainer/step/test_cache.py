"""The item cache of XIR in the stream: part of the checkpoint, and on all ranks alike."""

from collections.abc import Callable

import pytest
import torch

from tests.trainer.support import absorbed, batches_of, same_tensors
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import LossConfig, NegativesConfig, TowerConfig, TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import compute_gradients, train_step
from weir.trainer.train import train


@pytest.fixture
def xir(config: TrainerConfig) -> TrainerConfig:
    changes = {"loss": LossConfig(kind="resampled_softmax", cache=16), "negatives": NegativesConfig(uniform=0)}
    return config.model_copy(update=changes)


def test_a_restored_run_goes_on_bit_for_bit(store: Store, writer: WindowWriter, xir: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, xir)
    dealt = batches_of(store, state)
    for batch in dealt[:2]:
        train_step(state, batch, Workers())
    tensors = {name: value.clone() for name, value in state.tensors().items()}
    assert tensors["cache.counts"].sum() > 0
    other = TrainerState.restore(xir, tensors, torch.device("cpu"))
    for batch in dealt[2:4]:
        train_step(state, batch, Workers())
        train_step(other, batch, Workers())
    assert same_tensors(state.tensors(), other.tensors()) == []


def test_the_cache_counts_what_all_rows_drew(store: Store, writer: WindowWriter, xir: TrainerConfig) -> None:
    synthetic(writer, windows=1)
    state = absorbed(store, xir)
    batch = batches_of(store, state)[0]
    drawn = compute_gradients(state, batch, Workers()).drawn
    # Half as many draws as candidates from either part, for each row.
    rows = int(batch.real.sum())
    assert int(drawn.sum()) == rows * (rows // 2 + 16 // 2)
    train_step(state, batch, Workers())
    assert state.cache is not None
    assert int(state.cache.counts.sum()) == int(drawn.sum())
    assert torch.isin(state.cache.items, state.live).all()


def test_what_needs_a_closed_world_is_refused_in_the_stream(store: Store, config: TrainerConfig) -> None:
    offline = config.model_copy(update={"tower": TowerConfig(kind="matrix_factorisation", dimension=8)})
    with pytest.raises(ValueError, match="matrix_factorisation knows users by id and trains in `weir evaluate`"):
        train(store, offline)


def test_a_loss_of_whole_batches_is_refused_on_several_ranks(
    store: Store, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointwise = {"loss": LossConfig(kind="pointwise"), "negatives": NegativesConfig(uniform=0)}
    alone: Callable[..., Workers] = lambda device, patience: Workers(0, 2)  # noqa: E731
    monkeypatch.setattr(Workers, "from_environment", staticmethod(alone))
    monkeypatch.setattr(Workers, "__enter__", lambda workers: workers)
    monkeypatch.setattr(Workers, "__exit__", lambda workers, *failure: None)
    monkeypatch.setattr(Workers, "broadcast", lambda workers, payload: payload)
    with pytest.raises(ValueError, match="is a loss of the whole batch: train it with one rank"):
        train(store, config.model_copy(update=pointwise))
