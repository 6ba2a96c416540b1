"""Started by torchrun: ids that ranks share beside those of a dictionary, through random changes."""

import sys
from pathlib import Path

import numpy as np

from weir.trainer.items.ids import ItemIds, pack_ids
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.workers import Workers


def main(out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        capacity, draw, alone = 8, np.random.default_rng(1), dict[int, str | None]()
        ids = ItemIds(capacity, workers)
        for turn in range(12):
            if turn % 4 == 3:
                capacity *= 2
                ids.grow(capacity)
            rows = TableRows(draw.permutation(capacity)[: draw.integers(0, capacity)])
            names = np.array([f"é{row}-{turn}" * (row % 3) for row in rows.tolist()], object)
            if turn % 3 == 0:
                ids.put(rows, None)
                names[:] = None
            elif turn % 3 == 1:
                ids.put(rows, names)
            else:
                own = rows % workers.world_size == workers.rank
                ids.put_packed(TableRows(rows[own]), *pack_ids(names[own]))
            alone |= dict(zip(rows.tolist(), names.tolist(), strict=True))
            # Each asks for others, in an order of its own.
            asked = TableRows(np.random.default_rng((turn, workers.rank)).permutation(capacity)[: capacity // 2 + 1])
            assert ids.of(asked).tolist() == [alone.get(row) for row in asked.tolist()]
        every = TableRows(np.arange(capacity)[::-1].copy())
        found: list[str | None] = []
        workers.first(lambda: found.extend(ids.of(every).tolist()), lambda _: ids.answer())
        assert not workers.is_first or found == [alone.get(row) for row in every.tolist()]
        (Path(out) / f"rank{workers.rank}").write_text(str(len(ids.kept)))
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
