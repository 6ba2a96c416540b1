import pytest

from tests.trainer.support import absorbed, batches_of
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.step import train_step


@pytest.fixture
def taught(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=1)
    synthetic(writer, windows=1, items=80, seed=1, step_ms=7_200_000)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    return state
