"""What ranks save by sharing the item table: memory of a rank, bytes on the wire and CPU of a step.

    OMP_NUM_THREADS=1 python -m benchmarks.sharded run                         # some minutes, 5 GB of memory
    OMP_NUM_THREADS=1 python -m benchmarks.sharded run --store S               # the newest windows of a store

Each line is a run with so many ranks on this machine, which exchange rows through shared memory.

- table: MB of a rank's rows of a table for all items, the most of all ranks.
- keys and ids: the same of keys, ids (of 12 bytes), times and the hash table over them.
- rows: distinct table rows that a rank fetches for its share of a batch, the mean of all ranks.
- wire: MB that a rank sends to others in a step, the mean of all ranks.
- CPU: seconds of a step, all ranks together, median of the rounds, and against one rank in the same round.
- apart: the same of as many trainings at the same time without any exchange, with a share of the batch each.

A batch has the default tower and loss; without a store, its histories of 50 items and its positives follow Zipf's law.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.harness import F64, command_line, figures_of_ranks, head, row, status, zipf_ranks
from benchmarks.states import filled
from weir.contracts import ItemKeys, Store, UserError, WindowLog
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.table import FIRST_ITEM, ItemTable
from weir.trainer.ranks.device import keep_freed_memory
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.batches import Batch
from weir.trainer.step.inputs import sample_inputs
from weir.trainer.step.step import train_step
from weir.trainer.stream.cost import batches_of, newest

app = command_line(__doc__)

_MODULE: Final = "benchmarks.sharded"
_RANKS: Final = (1, 2, 4)
TABLES: Final = [2_000_000, 16_000_000]
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


def batch_of(config: TrainerConfig, workers: Workers, number: int) -> Batch:
    """Return a batch in which items follow Zipf's law."""
    size, length = config.batch_size, config.tower.history_length
    ranks, _ = zipf_ranks(_KNOWN, size * (length + 1), 1.0, np.random.default_rng(number))
    rows = torch.from_numpy(ranks + FIRST_ITEM).view(size, length + 1)
    histories, ones = rows[workers.share(size), 1:], torch.ones(size)
    return Batch(rows[:, 0], histories, ones, torch.ones(size, dtype=torch.bool), ones, histories)


def model(config: TrainerConfig, workers: Counted, count: int, store: str) -> tuple[TrainerState, Iterator[Batch]]:
    """Return a fresh model and batches, of which `count` have to do: of a store, or drawn."""
    if not store:
        state = filled(config, _KNOWN, workers=workers)
        return state, (batch_of(config, workers, number) for number in range(count))
    log, state = WindowLog(Store(store)), TrainerState.fresh(config, workers.device, workers=workers)
    return state, batches_of(state, log, newest(log, config.batch_size, count), workers)


def steps(config: TrainerConfig, workers: Counted, count: int, store: str) -> list[float]:
    """Return the distinct rows, bytes sent, CPU seconds and wall seconds of a step of this rank."""
    state, batches = model(config, workers, _WARM_UP + count, store)
    spent, done, rows = np.zeros(3), 0, 0
    for batch in islice(batches, _WARM_UP):
        rows = len(state.select(sample_inputs(state, batch, workers).used)[0])
        train_step(state, batch, workers)
    for batch in islice(batches, count):
        done += 1
        spent -= [workers.sent, time.process_time(), time.perf_counter()]
        train_step(state, batch, workers)
        spent += [workers.sent, time.process_time(), time.perf_counter()]
    if done < count:
        raise UserError(
            f"{store}: its windows hold fewer than {_WARM_UP + count} batches of {config.batch_size} examples; "
            "set a smaller --batch or --count"
        )
    return [rows, *(spent / count).tolist()]


@app.command()
def rank(batch: int, count: int, store: str, items: Annotated[list[int] | None, typer.Argument()] = None) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = TrainerConfig(batch_size=batch, device="cpu")
    alone = Workers.from_environment("cpu")
    with Counted(alone.rank, alone.world_size, alone.device) as workers:
        tables = [table_bytes(one, config, workers) for one in items or ()]
        tables += [item_bytes(one, workers) for one in items or ()]
        own = [*steps(config, workers, count, store), *tables]
        found = workers.gather(torch.tensor(own, dtype=torch.float64))
        workers.first(lambda: print(json.dumps(found.tolist())))


def apart(ranks: int, batch: int, count: int, store: str) -> float:
    """Return the CPU seconds of as many steps, with a share of the batch each, that exchange nothing."""
    with ThreadPoolExecutor(ranks) as pool:
        runs = [pool.submit(figures_of_ranks, 1, _MODULE, batch // ranks, count * ranks, store) for _ in range(ranks)]
    return sum(float(run.result()[:, 2].sum()) for run in runs)


@app.command()
def run(
    items: Annotated[list[int], typer.Option(help="items of the tables whose memory is measured")] = TABLES,
    batch: Annotated[int, typer.Option(help="examples of a step, over all ranks")] = 4096,
    count: Annotated[int, typer.Option(help="steps of a round")] = 5,
    rounds: Annotated[int, typer.Option(help="times that each line is measured")] = 3,
    *,
    store: Annotated[str, typer.Option(help="train on its newest windows")] = "",
) -> None:
    """Measure and print everything."""
    found: dict[int, list[F64]] = {ranks: [] for ranks in _RANKS}
    unshared: dict[int, list[float]] = {ranks: [] for ranks in _RANKS}
    for _ in range(rounds):
        for ranks in _RANKS:
            found[ranks].append(figures_of_ranks(ranks, _MODULE, batch, count, store, *items))
            unshared[ranks].append(apart(ranks, batch, count, store))
    memory = [f"{name} of {one:,}, MB" for name in ("table", "keys and ids") for one in items]
    head("ranks", *memory, "rows", "wire, MB", "CPU, s", "CPU / one rank", "wall, s", "apart, s", "apart / one rank")
    alone = np.array([float(part[:, 2].sum()) for part in found[1]])
    for ranks in _RANKS:
        one, cpu = found[ranks][-1], np.array([float(part[:, 2].sum()) for part in found[ranks]])
        tables = (float(one[:, 4 + number].max()) / 1e6 for number in range(len(memory)))
        wall = float(np.median([part[:, 3].max() for part in found[ranks]]))
        costs = [float(np.median(values)) for values in (cpu, cpu / alone, unshared[ranks], unshared[ranks] / alone)]
        row(ranks, *tables, float(one[:, 0].mean()), float(one[:, 1].mean()) / 1e6, *costs[:2], wall, *costs[2:])


if __name__ == "__main__":
    app()
