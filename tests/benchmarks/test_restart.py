from pathlib import Path

import pytest

from benchmarks import restart
from benchmarks.ranks_memory import change, fill
from weir.contracts import Store
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.keeper import Keeper
from weir.trainer.ranks.workers import Workers
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState


def test_a_start_compares_what_has_changed_or_every_item(tmp_path: Path) -> None:
    store, config = Store(str(tmp_path)), TrainerConfig(device="cpu")
    with pytest.raises(RuntimeError, match="holds no checkpoint"):
        restart.first_export(store, config, is_known=True, beside=True)
    state = TrainerState.fresh(config)
    fill(state, 1000)
    state.position.trained_sequence = 0
    export_bundle(store, state, keeper=Keeper())
    change(state, 20)
    CheckpointLog(store).save(state, Workers())
    shares = [restart.first_export(store, config, is_known=is_known, beside=is_known)[0] for is_known in (True, False)]
    assert shares == [20 / 1000, 1]
