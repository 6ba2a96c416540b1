"""What log Q costs: the gather in a training step, and the refresh when a window arrives.

    python -m benchmarks.logq_step            # OMP_NUM_THREADS=1 for one core

A step only reads log Q of its rows from a table (the gather) and mixes the sources of negatives (the density). The
table is computed again from the sketches when a window arrives: the refresh.
"""

from typing import Annotated

import numpy as np
import torch
import typer

from benchmarks.harness import I64, head, median_seconds, row, zipf_ranks
from benchmarks.states import filled
from trainer.config import TowerConfig, TrainerConfig
from trainer.items.table import FIRST_ITEM
from trainer.negatives import Pool, shared_pool
from trainer.ranks.workers import Workers
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Batch
from trainer.step.step import train_step

app = typer.Typer(help=__doc__, rich_markup_mode=None, add_completion=False)
Lives = float | tuple[float, ...]


@app.command()
def main(
    items: Annotated[int, typer.Option(help="items in the table")] = 100_000,
    steps: Annotated[int, typer.Option(help="steps timed")] = 20,
) -> None:
    """Print the table."""
    head("tower", "batch", "half-lives", "step, ms", "gather and density, ms", "share", "refresh per window, ms")
    for kind, size in (("sasrec", 512), ("mean_pooling", 512), ("mean_pooling", 4096)):
        for lives in (86400.0, (3600.0, 86400.0, 864000.0)):
            tower = TowerConfig.model_validate({"kind": kind})
            config = TrainerConfig(device="cpu", batch_size=size, tower=tower, half_life_seconds=lives)
            state, sketch = filled(config, items, zipf(items, 1_000_000))
            batch = synthetic_batch(config, items)
            step = median_seconds(lambda: train_step(state, batch, Workers()), steps)  # noqa: B023 - called at once
            used = torch.cat([batch.positives, batch.histories.flatten()]).unique()
            gather = median_seconds(lambda: log_q_of(state, used), 10 * steps)  # noqa: B023
            refresh = median_seconds(lambda: arrive(state, sketch), 3)  # noqa: B023
            count = len(state.frequencies.half_lives)
            times = (f"{1e3 * step:.1f}", f"{1e3 * gather:.3f}", f"{gather / step:.2%}", f"{1e3 * refresh:.0f}")
            row(kind, size, count, *times)


def synthetic_batch(config: TrainerConfig, items: int) -> Batch:
    """Return a batch of popular positives and full histories."""
    size, length = config.batch_size, config.tower.history_length
    rows = torch.from_numpy(zipf(items, size * (length + 1))).view(size, length + 1) + FIRST_ITEM
    histories, ones = rows[:, 1:].contiguous(), torch.ones(size)
    return Batch(rows[:, 0].contiguous(), histories, ones, ones > 0, ones, histories)


def zipf(items: int, events: int) -> I64:
    """Draw numbers of items by Zipf(1.05)."""
    return zipf_ranks(items, events, 1.05, np.random.default_rng(1))[0]


def log_q_of(state: TrainerState, rows: torch.Tensor) -> None:
    """Look up log Q as a step does before the loss."""
    size = state.config.batch_size
    shared_pool(state.config.negatives, state.log_q, state.live).log_q(rows, Pool(size, size))


def arrive(state: TrainerState, sketch: bytes) -> None:
    """Add the frequencies of a further window."""
    state.frequencies.add(sketch, state.frequencies.time_ms + 3_600_000)
    state.refresh_frequencies()


if __name__ == "__main__":
    app()
