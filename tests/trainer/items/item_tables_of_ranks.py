"""Started by torchrun: an item table that ranks share beside one that each has alone, through random windows."""

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from weir.contracts import ItemKeys
from weir.trainer.items import stored
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.items.stored import tabled
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers

SPREAD = np.int64(0x9E3779B97F4A7C1)


def window(table: ItemTable, listed: np.ndarray, now: int) -> list[list[int]]:
    """Do what a window does; return what came of it."""
    keys, ids = ItemKeys(listed * SPREAD), np.array([f"é{number}" * (number % 3) for number in listed.tolist()], object)
    table.touch(keys, now)
    expired, admitted = table.expire(now - 3), table.admit(keys, ids, now)
    return [one.tolist() for one in (expired, admitted, table.rows_alike(keys), table.live)]


def compare(table: ItemTable, alone: ItemTable, workers: Workers, turn: int) -> None:
    # Each asks for other keys, and another number of them.
    asked = np.random.default_rng((turn, workers.rank)).integers(0, 300, 40 * workers.rank)
    keys = ItemKeys(asked * SPREAD)
    assert np.array_equal(table.rows(keys), alone.rows(keys))
    own = TableRows(np.arange(workers.rank, alone.capacity, workers.world_size))
    for name, value in alone.state_of(own).items():
        assert np.array_equal(table.state_dict()[name], value), name
    wanted = alone.touched_here(Reader.BUNDLE)
    assert table.touched_here(Reader.BUNDLE).tolist() == wanted[wanted % workers.world_size == workers.rank].tolist()


def first_reads_alone(table: ItemTable, alone: ItemTable, workers: Workers) -> None:
    rows = TableRows(np.arange(alone.capacity)[::-2].copy())
    found = list[bool]()

    def read() -> None:
        mine, wanted = table.state_of(rows), alone.state_of(rows)
        found.extend(np.array_equal(mine[name], wanted[name]) for name in wanted)
        found.append(np.array_equal(table.keys_of(rows), alone.keys[rows]))
        keys = alone.keys[alone.live]
        found.append(np.array_equal(table.rows(keys), alone.live))
        for name, lines in tabled(table, rows).items():
            found.append(lines.shape == wanted[name].shape)
            found.append(np.array_equal(torch.cat(list(lines)), wanted[name]))

    with patch.object(stored, "_AT_ONCE", 64):
        workers.first(read, table.answer)
    assert all(found)
    assert len(found) == 14 * workers.is_first


def main(out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        table, alone, draw, now = ItemTable(4, workers), ItemTable(4), np.random.default_rng(1), 0
        for turn in range(20):
            now += int(draw.integers(-1, 3))
            listed = draw.permutation(300)[: draw.integers(0, 80)] + 1
            assert window(table, listed, now) == window(alone, listed, now)
            if turn % 5 == 4:
                table.load_state_dict(table.state_dict())
                alone.load_state_dict(alone.state_dict())
                table.index()
                alone.index()
            if turn % 7 == 6:
                rows = alone.live[::3]
                own = TableRows(rows[rows % workers.world_size == workers.rank])
                table.load_rows(own, alone.state_of(own))
                table.index()
            compare(table, alone, workers, turn)
            first_reads_alone(table, alone, workers)
        (Path(out) / f"rank{workers.rank}").write_text(str(len(table.keys)))
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
