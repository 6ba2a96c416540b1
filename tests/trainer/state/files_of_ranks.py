"""Started by torchrun: ranks that share a state write its items to files, as many items as there are ranks or fewer.

The files are those of one that has all alone, whether ranks are on one machine, on several with a disk in common, or on
several without.
"""

import os
import sys
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.trainer.state.test_items import files_of, with_items
from weir.contracts import hash_ids
from weir.contracts.storage.array_files import mapped, write_lines
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranks.workers import Workers
from weir.trainer.state import items as item_writer


def on_machines(count: int) -> AbstractContextManager[object]:
    """Let ranks believe that they are on so many machines."""
    return patch.dict(os.environ, {"GROUP_WORLD_SIZE": str(count)})


def refuse(path: Path, *what: Any) -> None:
    """Write the two special rows, which rank 0 does before others do anything, and nothing else."""
    if len(what[-1]) != FIRST_ITEM or what[0] != 0:
        raise OSError("no room")
    write_lines(path, *what)


def follow(folder: str, items: int, workers: Workers) -> int:
    """Write the items of one state in each way; return how many there are at the end."""
    shared, alone = with_items(items, workers), with_items(items, None)
    for state in (shared, alone):
        state.table.expire(items // 3)  # rows between others are free
        state.table.admit(hash_ids(["new"]), np.array(["new"], object), items)
    found: list[list[np.ndarray]] = []
    for machines, sees in ((1, True), (2, True), (2, workers.is_first)):
        with on_machines(machines), patch.object(os, "access", return_value=sees):
            workers.first(lambda: found.append(files_of(folder, shared)), shared.answer)
    if workers.is_first:
        for wanted, *others in zip(files_of(folder, alone), *found, strict=True):
            assert len(wanted)
            assert all(np.array_equal(wanted.view(np.uint32), other.view(np.uint32)) for other in others)
    return len(shared.table)


def fail_once(folder: str, failing: int, machines: int, workers: Workers) -> None:
    """Let a rank fail to write: rank 0 gets an error, nobody waits, and the next time all is written."""
    state, seen = with_items(40, workers), list[str]()

    def write() -> None:
        try:
            files_of(folder, state)
        except (RuntimeError, OSError) as error:
            seen.append(str(error))

    for ranks in ({failing}, set[int]()):
        writes, reads = (refuse, refuse) if workers.rank in ranks else (write_lines, mapped)
        with patch.multiple(item_writer, write_lines=writes, mapped=reads), on_machines(machines):
            workers.first(write, state.answer)
    wanted = "no room" if failing == 0 else "ranks have done "
    assert len(seen) == workers.is_first
    assert all(one.startswith(wanted) for one in seen)


def main(folder: str) -> None:
    with Workers.from_environment("cpu") as workers:
        for machines, failing in product((1, 2), range(workers.world_size)):
            fail_once(folder, failing, machines, workers)
        left = sum(follow(folder, items, workers) for items in (1, 2, 3, 40, 300))
        Path(folder, f"rank{workers.rank}").write_text(str(left))


if __name__ == "__main__":
    main(sys.argv[1])
