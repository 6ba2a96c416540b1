"""Started by torchrun: counts that ranks share beside those that each has alone, through random windows."""

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from weir.contracts import ItemKeys
from weir.sketches import ExactCounter, FrequencyView
from weir.trainer.items import stored
from weir.trainer.items.rows import TableRows
from weir.trainer.items.table import ItemTable, RowChanges
from weir.trainer.log_q.row_counts import LogQ, RowCounts, counted
from weir.trainer.ranks.workers import Workers

HOUR = 3_600_000


class Stream:
    """A table and its counts."""

    def __init__(self, workers: Workers) -> None:
        self.view, self.table = FrequencyView((3600.0, 36_000.0)), ItemTable(4, workers)
        self.counts = RowCounts(self.view, self.table, torch.zeros(1, 1), workers)

    def window(self, events: np.ndarray, hour: int) -> TableRows:
        """Take in a window whose items all have rows from now on; return the rows that changed besides theirs."""
        counter, keys = ExactCounter(), ItemKeys(np.unique(events))
        counter.update(events)
        self.view.add(counter.to_bytes(), hour * HOUR)
        self.table.touch(keys, hour)
        evicted = self.table.expire(hour - 4)
        changes = RowChanges(self.table.admit(keys, keys.astype(str).astype(object), hour), evicted)
        return self.counts.follow(self.table.rows_alike(keys), self.view.estimates(keys), changes)

    def restored(self, workers: Workers) -> "Stream":
        """Return what a checkpoint makes of what each rank keeps, and a delta of some rows that come from all."""
        other = Stream(workers)
        other.view.load_state_dict(self.view.state_dict())
        other.view.time_ms = self.view.time_ms
        other.table.load_state_dict(self.table.state_dict())
        other.table.index()
        rows = TableRows(np.arange(0, self.table.capacity, 3))
        delta = {name: value.clone() for name, value in self.counts.state_of(rows).items()}
        whole = {name: value.clone() for name, value in self.counts.state_dict().items()}
        whole["units"][self.counts.kept.own(rows)[0]] = 7.0
        other.counts.load_state_dict(whole)
        _, own = self.counts.kept.own(rows)
        mine = {name: value if name == "times" else value[own] for name, value in delta.items()}
        other.counts.load_rows(TableRows(rows[own]), mine)
        other.counts.recount()
        return other


def compare(shared: Stream, alone: Stream, turn: int, rank: int) -> None:
    assert shared.counts.log_total == alone.counts.log_total
    # Each asks for other rows, some of them twice, and another number of them.
    asked = np.random.default_rng((turn, rank)).integers(0, alone.table.capacity, (2, 9 * rank))
    rows = torch.from_numpy(asked)
    assert torch.equal(shared.counts[rows], alone.counts[rows])
    mine, wanted = (LogQ(one.counts, one.counts.log_q)[rows] for one in (shared, alone))
    assert torch.equal(mine, wanted)


def first_reads_alone(shared: Stream, alone: Stream, workers: Workers) -> None:
    """Let rank 0 read what a checkpoint, a delta and an export do, while the others wait and answer."""
    rows, found = TableRows(np.arange(alone.table.capacity)[::-2].copy()), list[bool]()

    def read() -> None:
        delta, state, every = shared.counts.state_of(rows), alone.counts.state_dict(), torch.from_numpy(rows)
        found.extend(torch.equal(delta[name], value) for name, value in alone.counts.state_of(rows).items())
        found.extend(torch.equal(torch.cat(list(lines)), state[name]) for name, lines in counted(shared.counts).items())
        found.extend(
            torch.equal(torch.cat(list(lines)), state[name][every])
            for name, lines in counted(shared.counts, rows).items()
        )
        found.append(torch.equal(shared.counts[every], alone.counts[every]))

    with patch.object(stored, "_AT_ONCE", 64):
        workers.first(read, shared.counts.answer)
    assert all(found)
    assert len(found) == 8 * workers.is_first


def main(out: str) -> None:
    with Workers.from_environment("cpu") as workers:
        shared, alone, draw, hour = Stream(workers), Stream(Workers()), np.random.default_rng(2), 0
        for turn in range(16):
            # Units are made again after a long break.
            hour += int(draw.integers(0, 3)) + 70 * (turn == 13)
            # Some windows have few items, so that a rank may have none of them.
            events = draw.integers(1, int(draw.choice([3, 40, 300])), int(draw.choice([1, 60, 200])))
            changed = shared.window(events, hour), alone.window(events, hour)
            together = workers.collect(torch.from_numpy(changed[0])).sort().values
            assert together.tolist() == changed[1].tolist()
            if turn % 6 == 5:
                shared, alone = shared.restored(workers), alone.restored(Workers())
            if turn % 11 == 10:
                shared.counts.read_all()
                alone.counts.read_all()
            compare(shared, alone, turn, workers.rank)
            if turn % 4 == 3:
                first_reads_alone(shared, alone, workers)
        (Path(out) / f"rank{workers.rank}").write_text(str(len(shared.counts.kept.units)))
        workers.first(lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
