"""Stores, windows and small settings for the trainer's tests."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.trainer.windows import WindowWriter
from weir.contracts import Store
from weir.trainer.settings.trainer import NegativesConfig, TowerConfig, TrainerConfig

# How long an example takes says nothing on a machine that is shared.
settings.register_profile("trainer", deadline=None)
settings.load_profile("trainer")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def writer(store: Store) -> WindowWriter:
    return WindowWriter(store)


@pytest.fixture
def config() -> TrainerConfig:
    return TrainerConfig(
        device="cpu",
        batch_size=32,
        tower=TowerConfig(dimension=8, history_length=6, heads=2, dropout=0.1),
        negatives=NegativesConfig(uniform=16),
        evaluation_k=(1, 5, 20),
        evaluation_examples=50,
        checkpoint_every_steps=3,
        metrics_port=0,
        poll_seconds=0.01,
    )
