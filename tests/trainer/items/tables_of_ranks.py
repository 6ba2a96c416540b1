"""Started by torchrun: puts a table that ranks share beside one that each has alone, through random changes.

All ranks draw the same numbers, so each knows what the others ask for, and what the sums must be.
"""

import math
from unittest.mock import patch

import torch

from tests.trainer.support import same_tensors
from weir.trainer.items import stored
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import TableRows
from weir.trainer.items.stored import fetched, placed
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.step import sum_over_ranks

DIMENSION = 3


def fresh(workers: Workers) -> Embeddings:
    draw, cpu = torch.Generator().manual_seed(5), torch.device("cpu")
    return Embeddings.fresh(16, DIMENSION, draw, cpu, torch.float32, workers=workers)


def chosen(capacity: int, draw: torch.Generator) -> torch.Tensor:
    """Return distinct rows, sometimes none."""
    count = int(torch.randint(capacity, (1,), generator=draw))
    return torch.randperm(capacity, generator=draw)[:count]


def take_a_step(table: Embeddings, alone: Embeddings, workers: Workers, draw: torch.Generator) -> None:
    """Let each rank fetch rows and send gradients, and compare with their sum in the order of ranks."""
    asked = [chosen(table.capacity, draw) for _ in range(workers.world_size)]
    slopes = [torch.randn(len(rows), DIMENSION, generator=draw) for rows in asked]
    mine = asked[workers.rank]
    route = table.route(mine)
    assert torch.equal(route.fetch(table.weight), alone.weight[mine])
    dense = torch.zeros(table.capacity, DIMENSION)
    for rows, slope in zip(asked, slopes, strict=True):
        dense[rows] += slope
    everywhere = [[torch.randn(size, generator=draw) for size in ([5, 1], [], [2])] for _ in range(workers.world_size)]
    rows, gradient, lengths, shared = sum_over_ranks(
        table, route, slopes[workers.rank], everywhere[workers.rank], workers
    )
    assert torch.equal(gradient, dense[rows])
    everything = torch.cat(asked).unique()
    assert torch.equal(rows.sort().values, everything[table.places.own(everything)])
    for number, one in enumerate(shared):
        assert torch.equal(one, sum((their[number] for their in everywhere), torch.zeros_like(one)))
    assert math.isclose(math.hypot(*lengths), float(dense.double().norm()), rel_tol=1e-12)
    assert math.isclose(lengths[workers.rank], float(gradient.double().norm()), rel_tol=1e-12)
    table.adagrad_step(rows, gradient, 0.1)
    alone.adagrad_step(everything, dense[everything], 0.1)


def give_rows(tables: list[Embeddings], draw: torch.Generator) -> None:
    rows, seed = chosen(tables[0].capacity, draw).sort().values, int(torch.randint(1 << 30, (1,), generator=draw))
    for one in tables:
        one.initialise(TableRows(rows[rows > 0].numpy()), torch.Generator().manual_seed(seed))


def is_the_same(table: Embeddings, alone: Embeddings) -> bool:
    every = torch.arange(alone.capacity)
    found = {line: table.fetch(every, line) for line in alone.state_dict()}
    return same_tensors(found, alone.state_dict()) == []


def first_reads_alone(table: Embeddings, alone: Embeddings, workers: Workers) -> None:
    """Let rank 0 read what a checkpoint and an export do, while the others wait and answer."""
    rows = TableRows(torch.arange(0, alone.capacity, 3).numpy())

    def read() -> None:
        wanted = alone.state_of(rows)
        assert same_tensors(table.state_of(rows), wanted) == []
        with patch.object(stored, "_AT_ONCE", 10):
            pieces = {line: list(lines) for line, lines in fetched(table, rows).items()}
        assert max(len(piece) for piece in pieces["weight"]) == 10
        assert same_tensors({line: torch.cat(some) for line, some in pieces.items()}, wanted) == []
        for one, other in zip(table.norms().values(), alone.norms().values(), strict=True):
            torch.testing.assert_close(one, other)

    workers.first(read, table.answer)
    in_order = alone.places.rows(torch.arange(alone.capacity))
    for line, lines in placed(table).items():
        assert torch.equal(workers.collect(torch.cat(list(lines))), alone.fetch(in_order, line))


def add_up(workers: Workers, draw: torch.Generator) -> None:
    """Add numbers whose sum depends on the order, of all kinds of shapes, fewer than ranks among them."""
    for shape in [(), (1,), (2,), (7, 3), (64,)]:
        parts = [10.0 ** (4 * rank % 7) * torch.randn(shape, generator=draw) for rank in range(workers.world_size)]
        expected = parts[0].clone()
        for part in parts[1:]:
            expected = expected + part
        mine = parts[workers.rank].clone()
        assert workers.sum(mine) is mine
        assert torch.equal(mine, expected)
        assert torch.equal(workers.gather(parts[workers.rank]), torch.stack(parts))


def main() -> None:
    draw = torch.Generator().manual_seed(7)
    with Workers.from_environment("cpu") as workers:
        table, alone = fresh(workers), fresh(Workers())
        for number in range(40):
            take_a_step(table, alone, workers, draw)
            give_rows([table, alone], draw)
            if number in {9, 19}:
                # Once by one doubling, once by two.
                capacity = (2 if number == 9 else 4) * table.capacity
                table.grow(capacity)
                alone.grow(capacity)
            assert is_the_same(table, alone)
            add_up(workers, draw)
        assert len(table.weight) <= -(-128 // workers.world_size)
        first_reads_alone(table, alone, workers)
        workers.first(lambda: None)


if __name__ == "__main__":
    main()
