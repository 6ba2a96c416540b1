"""What an exchange between ranks of one machine costs: through memory that they share, and by gloo over loopback.

    OMP_NUM_THREADS=1 python -m benchmarks.exchanges run

Ranks take both ways in turn, so that whatever else runs slows down both. Figures are milliseconds of an exchange: CPU
of all ranks together, and of the clock, each the median of the rounds.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import numpy as np
import torch
import torch.distributed as dist
import typer
from torch import Tensor

from benchmarks.harness import F64, command_line, head, row
from weir.trainer.ranks.workers import Workers

app = command_line(__doc__)

_LINE: Final = 64
"""Numbers of a line, as of an embedding."""


def ways(workers: Workers, lines: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return both ways to send each rank as many of the lines, and to return what all sent here."""
    counts = [len(lines) // workers.world_size] * workers.world_size

    def by_gloo() -> Tensor:
        into = torch.empty_like(lines)
        dist.all_to_all_single(into, lines, counts, counts)
        return into

    return {"memory": lambda: workers.exchange(lines, counts, counts), "gloo": by_gloo}


def spent(way: Callable[[], object], count: int) -> list[float]:
    """Return the milliseconds of an exchange: CPU of this rank, and of the clock."""
    began = (time.process_time(), time.perf_counter())
    for _ in range(count):
        way()
    return [
        1e3 * (now - then) / count for now, then in zip((time.process_time(), time.perf_counter()), began, strict=True)
    ]


@app.command()
def rank(rows: int, count: int, rounds: int) -> None:
    """Be one of the ranks that `run` starts; the first prints what all of them found."""
    torch.set_num_threads(1)
    with Workers.from_environment("cpu") as workers:
        lines = torch.full((rows // workers.world_size * workers.world_size, _LINE), float(workers.rank))
        both = ways(workers, lines)
        first, second = (way() for way in both.values())
        if not torch.equal(first, second):
            raise AssertionError("both ways must bring the same")
        found = [[spent(way, count) for way in both.values()] for _ in range(rounds)]
        everywhere = workers.gather(torch.tensor(found, dtype=torch.float64))
        workers.first(lambda: print(json.dumps(everywhere.tolist())))


def measured(ranks: int, rows: int, count: int, rounds: int) -> F64:
    """Return CPU of all ranks and the time of the slowest, by way, the median of the rounds, (2, 2)."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, "-m", "benchmarks.exchanges", "rank", *map(str, (rows, count, rounds))]
    done = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
    of_ranks = np.array(json.loads(done.stdout.splitlines()[-1]))
    median: F64 = np.median(np.stack([of_ranks[..., 0].sum(0), of_ranks[..., 1].max(0)], -1), 0)
    return median


@app.command()
def run(
    rows: Annotated[list[int], typer.Option(help="rows that a rank sends")] = [4, 2000, 16_000],  # noqa: B006
    count: Annotated[int, typer.Option(help="exchanges of a round")] = 50,
    rounds: Annotated[int, typer.Option(help="times that both are measured")] = 9,
) -> None:
    """Measure and print everything."""
    names = [f"{way}, {unit}" for way in ("memory", "gloo") for unit in ("CPU ms", "ms")]
    head("ranks", "a rank sends, KB", *names, "CPU, memory / gloo")
    for ranks in (2, 4):
        for sent in rows:
            both = measured(ranks, sent, count, rounds)
            row(ranks, sent * _LINE * 4 / 1e3, *both.flatten().tolist(), float(both[0, 0] / both[1, 0]))


if __name__ == "__main__":
    app()
