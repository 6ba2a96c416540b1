"""Started by torchrun, or imported: goes on with a run from its newest checkpoint, all ranks together."""

import json
import sys
from pathlib import Path
from threading import Event

import torch

from tests.trainer.support import whole_tensors
from weir.contracts import Store, WindowLog
from weir.trainer.export.bundle import export_bundle
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.checkpoint import CheckpointLog
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.stream.learner import Learner
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver


def gone_on(store: Store, config: TrainerConfig, workers: Workers, numbers: range) -> dict[str, torch.Tensor]:
    """Return all that is remembered after the windows of these numbers; a checkpoint follows each.

    Of several ranks, three make bundles, too: the tower is traced for them, once for each process, which takes long.
    """
    checkpoints, log = CheckpointLog(store), WindowLog(store)
    state = checkpoints.load(config, workers) or TrainerState.fresh(config, dtype=torch.float64, workers=workers)
    observer = ProgressObserver(store, TrainerMetrics(), workers.is_first, None)
    learner = Learner(state, log, workers, Event(), observer, checkpoints)
    for number in numbers:
        assert learner.process_window(log.committed()[number])
        if workers.world_size == 3:
            workers.first(lambda: export_bundle(store, state), state.answer)
        checkpoints.save(state, workers)
    return whole_tensors(state)


def main(url: str, config: str, numbers: str, out: str) -> None:
    settings, (first, last) = TrainerConfig.model_validate_json(config), json.loads(numbers)
    with Workers.from_environment("cpu") as workers:
        found = gone_on(Store(url), settings, workers, range(first, last))
        torch.save(found, Path(out) / f"{workers.rank}.pt")
        # A rank that goes while another is in its last exchange may take that one down.
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
