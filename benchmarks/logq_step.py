"""What log Q costs: the gather in a training step, and the refresh when a window arrives.

    python -m benchmarks.logq_step            # OMP_NUM_THREADS=1 for one core

A step only reads log Q of its rows from a table (the gather) and mixes the sources of negatives (the density). The
table is computed anew from the sketches when a window has arrived, which is counted here per window.
"""

import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import typer

from sketches import CountMinSketch
from trainer.config import TowerConfig, TrainerConfig
from trainer.items.table import FIRST_ITEM
from trainer.negatives import Pool, shared_pool
from trainer.ranks.workers import Workers
from trainer.state.trainer_state import TrainerState
from trainer.step.batches import Batch
from trainer.step.seeds import Purpose, generator
from trainer.step.step import train_step

app = typer.Typer(help=__doc__, rich_markup_mode=None, add_completion=False)
Lives = float | tuple[float, ...]


@app.command()
def main(
    items: Annotated[int, typer.Option(help="items in the table")] = 100_000,
    steps: Annotated[int, typer.Option(help="steps timed")] = 20,
) -> None:
    """Print the table."""
    print("| tower | batch | half-lives | step, ms | gather and density, ms | share | refresh per window, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind, size in (("sasrec", 512), ("mean_pooling", 512), ("mean_pooling", 4096)):
        for lives in (86400.0, (3600.0, 86400.0, 864000.0)):
            tower = TowerConfig.model_validate({"kind": kind})
            config = TrainerConfig(device="cpu", batch_size=size, tower=tower, half_life_seconds=lives)
            state, sketch = filled(config, items)
            batch = made_up(config, items)
            step = median(lambda: train_step(state, batch, Workers()), steps)  # noqa: B023 - called at once
            used = torch.cat([batch.positives, batch.histories.flatten()]).unique()
            gather = median(lambda: log_q_of(state, used), 10 * steps)  # noqa: B023
            refresh = median(lambda: arrive(state, sketch), 3)  # noqa: B023
            count = len(state.frequencies.half_lives)
            figures = f"{1e3 * step:.1f} | {1e3 * gather:.3f} | {gather / step:.2%} | {1e3 * refresh:.0f}"
            print(f"| {kind} | {size} | {count} | {figures} |", flush=True)


def filled(config: TrainerConfig, items: int) -> tuple[TrainerState, bytes]:
    """Return a state whose table holds all items, and a window's sketch of them."""
    state, keys = TrainerState.fresh(config), np.random.default_rng(0).integers(1, 2**63, items)
    sketch = CountMinSketch(1 << 16)
    sketch.update(keys[zipf(items, 1_000_000)])
    admitted = state.table.admit(keys, np.full(items, "item", object), 0)
    state.embeddings.grow(state.table.capacity)
    state.embeddings.initialise(admitted, generator(0, Purpose.ROWS, 0))
    state.frequencies.add(sketch.to_bytes(), 0)
    state.refresh_frequencies()
    return state, sketch.to_bytes()


def made_up(config: TrainerConfig, items: int) -> Batch:
    """Return a batch of popular positives and full histories."""
    size, length = config.batch_size, config.tower.history_length
    rows = torch.from_numpy(zipf(items, size * (length + 1))).view(size, length + 1) + FIRST_ITEM
    histories, ones = rows[:, 1:].contiguous(), torch.ones(size)
    return Batch(rows[:, 0].contiguous(), histories, ones, ones > 0, ones, histories)


def zipf(items: int, events: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw numbers of items by Zipf(1.05)."""
    rng, law = np.random.default_rng(1), np.cumsum(np.arange(1, items + 1, dtype=np.float64) ** -1.05)
    return np.minimum(np.searchsorted(law, rng.random(events) * law[-1]), items - 1)


def log_q_of(state: TrainerState, rows: torch.Tensor) -> None:
    """Do what a step does with log Q before the loss."""
    size = state.config.batch_size
    shared_pool(state.config.negatives, state.log_q, state.live).log_q(rows, Pool(size, size))


def arrive(state: TrainerState, sketch: bytes) -> None:
    """Take a further window's frequencies in."""
    state.frequencies.add(sketch, state.frequencies.time_ms + 3_600_000)
    state.refresh_frequencies()


def median(call: Callable[[], object], times: int) -> float:
    """Return the median wall time of a call, in seconds."""
    call()
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return float(np.median(found))


if __name__ == "__main__":
    app()
