"""What ranks save by sharing the item table: memory of a rank, bytes on the wire and CPU of a step.

    OMP_NUM_THREADS=1 python -m benchmarks.sharded run                         # some minutes, 5 GB of memory

Each line is a run of so many processes of this machine, which exchange rows by gloo over loopback.

- table: by how many MB the memory of a rank grows with its rows of a table for so many items, the most of all ranks.
- keys, ids: the same with the keys, ids (of 12 bytes) and times of so many items, and what finds them.
- rows: distinct table rows that a rank fetches for its share of a batch, the mean of all ranks.
- wire: MB that a rank sends to others in a step, the mean of all ranks.
- CPU: seconds of a step, all ranks together, median of the rounds, and against one rank in the same round.

A batch has the default tower and loss; its histories of 50 items and its positives follow Zipf's law.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.harness import command_line, head, row, status, zipf_ranks
from benchmarks.states import filled
from contracts import ItemKeys
from trainer.config import TrainerConfig
from trainer.items.embeddings import Embeddings
from trainer.items.table import FIRST_ITEM, ItemTable
from trainer.ranks.allocator import keep_freed_memory
from trainer.ranks.workers import Workers
from trainer.step.batches import Batch
from trainer.step.inputs import sample_inputs
from trainer.step.step import train_step

app = command_line(__doc__)

_RANKS: Final = (1, 2, 4)
_KNOWN: Final = 200_000
"""Items of the model that is trained: what a step costs does not depend on it."""
_WARM_UP: Final = 2
_AT_ONCE: Final = 1 << 16


@dataclass
class Counted(Workers):
    """Ranks that count the bytes which they send to others."""

    sent: int = 0

    def exchange(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Count, and exchange."""
        line = tensor.element_size() * tensor[:1].numel() if len(tensor) else 0
        self.sent += line * (sum(send) - send[self.rank])
        return super().exchange(tensor, send, receive)


def table_bytes(items: int, config: TrainerConfig, workers: Workers) -> int:
    """Return by how much the memory of this process grows with its rows of a table for so many items."""
    capacity = 1 << (items + FIRST_ITEM - 1).bit_length()
    before, cpu = status("VmRSS"), torch.device("cpu")
    draw = torch.Generator().manual_seed(0)
    table = Embeddings.fresh(capacity, config.tower.dimension, draw, cpu, torch.float32, workers=workers)
    # Memory that nobody has written is not there yet.
    table.weight.uniform_()
    table.squares.uniform_()
    return status("VmRSS") - before


def item_bytes(items: int, workers: Workers) -> int:
    """Return by how much the memory of this process grows with what is known of so many items, besides embeddings."""
    before, table = status("VmRSS"), ItemTable(workers=workers)
    for first in range(0, items, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, items))
        keys = ItemKeys((numbers + 1) * np.int64(0x9E3779B97F4A7C1))
        table.admit(keys, np.array([f"id-{number:09d}" for number in numbers.tolist()], object), first)
    return status("VmRSS") - before


def batch_of(config: TrainerConfig, workers: Workers, number: int, items: int = _KNOWN) -> Batch:
    """Return a batch in which items follow Zipf's law."""
    size, length = config.batch_size, config.tower.history_length
    ranks, _ = zipf_ranks(items, size * (length + 1), 1.0, np.random.default_rng(number))
    rows = torch.from_numpy(ranks + FIRST_ITEM).view(size, length + 1)
    histories, ones = rows[workers.share(size), 1:], torch.ones(size)
    return Batch(rows[:, 0], histories, ones, torch.ones(size, dtype=torch.bool), ones, histories)


def steps(config: TrainerConfig, workers: Counted, count: int) -> tuple[float, int, float, float]:
    """Return the distinct rows, bytes sent, CPU seconds and wall seconds of a step of this rank."""
    state, _ = filled(config, _KNOWN, workers=workers)
    batches = [batch_of(config, workers, number) for number in range(_WARM_UP + count)]
    rows = len(state.select(sample_inputs(state, batches[0], workers).used)[0])
    for batch in batches[:_WARM_UP]:
        train_step(state, batch, workers)
    workers.sent, cpu, wall = 0, time.process_time(), time.perf_counter()
    for batch in batches[_WARM_UP:]:
        train_step(state, batch, workers)
    return rows, workers.sent / count, (time.process_time() - cpu) / count, (time.perf_counter() - wall) / count


@app.command()
def rank(batch: int, count: int, items: list[int]) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = TrainerConfig(batch_size=batch, device="cpu")
    alone = Workers.from_environment("cpu")
    with Counted(alone.rank, alone.world_size, alone.device) as workers:
        tables = [table_bytes(one, config, workers) for one in items]
        tables += [item_bytes(one, workers) for one in items]
        found = workers.gather(torch.tensor([*steps(config, workers, count), *tables], dtype=torch.float64))
        workers.first(lambda: print(json.dumps(found.tolist())))


def ranks_of(ranks: int, items: Sequence[int], batch: int, count: int) -> np.ndarray:
    """Return what each of so many ranks found, (ranks, 4 + figures of memory)."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = ["-m", "benchmarks.sharded", "rank", str(batch), str(count), *map(str, items)]
    done = subprocess.run(
        [sys.executable, *launcher, *arguments], env=os.environ, check=True, stdout=subprocess.PIPE, text=True
    )
    return np.array(json.loads(done.stdout.splitlines()[-1]))


@app.command()
def run(
    items: Annotated[list[int], typer.Option(help="items of the tables whose memory is measured")] = [  # noqa: B006
        2_000_000,
        16_000_000,
    ],
    batch: Annotated[int, typer.Option(help="examples of a step, over all ranks")] = 4096,
    count: Annotated[int, typer.Option(help="steps of a round")] = 5,
    rounds: Annotated[int, typer.Option(help="times that each line is measured")] = 3,
) -> None:
    """Measure and print everything."""
    found: dict[int, list[np.ndarray]] = {ranks: [] for ranks in _RANKS}
    for _ in range(rounds):
        for ranks in _RANKS:
            found[ranks].append(ranks_of(ranks, items, batch, count))
    memory = [f"{name} of {one:,}, MB" for name in ("table", "keys and ids") for one in items]
    head("ranks", *memory, "rows", "wire, MB", "CPU, s", "CPU / one rank", "wall, s")
    for ranks in _RANKS:
        one = found[ranks][-1]
        cpu = [float(part[:, 2].sum()) for part in found[ranks]]
        ratio = np.median([mine / float(alone[:, 2].sum()) for mine, alone in zip(cpu, found[1], strict=True)])
        tables = (float(one[:, 4 + number].max()) / 1e6 for number in range(len(memory)))
        wall = float(np.median([part[:, 3].max() for part in found[ranks]]))
        row(ranks, *tables, float(one[:, 0].mean()), float(one[:, 1].mean()) / 1e6, float(np.median(cpu)), ratio, wall)


if __name__ == "__main__":
    app()
