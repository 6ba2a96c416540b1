"""Started by torchrun: writes the gradients of a window's first and last batch, computed by all ranks together."""

import sys
from pathlib import Path

import torch

from tests.trainer.support import absorbed, batches_of
from weir.contracts import Store
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.step import compute_gradients


def main(url: str, config: str, out: str) -> None:
    settings = TrainerConfig.model_validate_json(config)
    with Workers.from_environment("cpu") as workers:
        state = absorbed(Store(url), settings, dtype=torch.float64, workers=workers)
        dealt = batches_of(Store(url), state)
        found = [compute_gradients(state, batch, workers, stop=workers.rank == 1) for batch in (dealt[0], dealt[-1])]
        torch.save([tuple(gradients) for gradients in found], Path(out) / f"rank{workers.rank}.pt")
        # A rank that goes while another is in its last exchange may take that one down.
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
