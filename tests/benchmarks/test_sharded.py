from pathlib import Path

import pytest

from benchmarks.sharded import Counted, steps
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, UserError
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig

CONFIG = TrainerConfig(device="cpu", batch_size=8, tower=TowerConfig(dimension=8, history_length=6, heads=2))


def test_steps_are_measured_on_the_windows_of_a_store_or_on_drawn_histories(tmp_path: Path) -> None:
    synthetic(WindowWriter(Store(str(tmp_path))), windows=1, events=60)
    for store in ("", str(tmp_path)):
        rows, sent, cpu, wall = steps(CONFIG, Counted(), 3, store)
        assert rows > 0
        assert sent == 0
        assert min(cpu, wall) > 0


def test_a_store_with_too_few_batches_is_named(tmp_path: Path) -> None:
    synthetic(WindowWriter(Store(str(tmp_path))), windows=1, events=60)
    with pytest.raises(UserError, match=f"{tmp_path}: its windows hold fewer than 1002 batches of 8 examples; set a"):
        steps(CONFIG, Counted(), 1000, str(tmp_path))
