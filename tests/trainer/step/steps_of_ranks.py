"""Started by torchrun, or imported: trains each of several settings from the start, all ranks together."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import get_args
from unittest.mock import patch

import torch

from tests.trainer.support import absorbed, batches_of
from weir.contracts import Store
from weir.trainer.items.embeddings import Line
from weir.trainer.log_q.row_counts import RowCounts
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.step import train_step

STEPS = 50


def trained(store: Store, config: TrainerConfig, workers: Workers, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return parameters and sums of squares after the steps; the window starts again at its end."""
    state = absorbed(store, config, dtype=dtype, workers=workers)
    dealt = batches_of(store, state)
    # Counts come with embeddings: to ask for them is one more exchange.
    refused = patch.object(RowCounts, "__getitem__", side_effect=AssertionError)
    with refused if workers.world_size > 1 else nullcontext():
        for step in range(STEPS):
            assert not train_step(state, dealt[step % len(dealt)], workers).refused
    parameters = {name: value.detach() for name, value in state.tower.state_dict().items()}
    if state.second is not None:
        scorer = state.second.scorer.state_dict()
        parameters |= {f"rescoring.{name}": value.detach() for name, value in scorer.items()}
    if state.featured_users is not None:
        said = state.featured_users.tower.state_dict()
        parameters |= {f"user features.{name}": value.detach() for name, value in said.items()}
    every = torch.arange(state.table.capacity)
    return parameters | {line: state.embeddings.fetch(every, line) for line in get_args(Line)}


def main(url: str, settings: str, dtype: str, out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        for name, config in json.loads(settings).items():
            found = trained(Store(url), TrainerConfig.model_validate(config), workers, getattr(torch, dtype))
            torch.save(found, Path(out) / f"{name}.{workers.rank}.pt")
        # A rank that goes while another is in its last exchange may take that one down.
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
