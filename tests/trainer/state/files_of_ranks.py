"""Started by torchrun: ranks that share a state write its items to files, as many items as there are ranks or fewer.

The files are those of one that has all alone, also where rank 0 fetches everything, as over several machines.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np

from contracts import hash_ids
from tests.trainer.state.test_item_writer import files_of, with_items
from trainer.ranks.workers import Workers


def follow(folder: str, items: int, workers: Workers) -> int:
    """Write the items of one state in each way; return how many there are at the end."""
    shared, alone = with_items(items, workers), with_items(items, None)
    for state in (shared, alone):
        state.table.expire(items // 3)  # rows between others are free
        state.table.admit(hash_ids(["new"]), np.array(["new"], object), items)
    found: list[list[np.ndarray]] = []
    for several in ("1", "2"):
        with patch.dict(os.environ, {"GROUP_WORLD_SIZE": several}):
            workers.first(lambda: found.append(files_of(folder, shared)), shared.answer)
    if workers.is_first:
        for wanted, *others in zip(files_of(folder, alone), *found, strict=True):
            assert len(wanted)
            assert all(np.array_equal(wanted.view(np.uint32), other.view(np.uint32)) for other in others)
    return len(shared.table)


def fail_once(folder: str, failing: int, workers: Workers) -> None:
    """Let a rank fail to write: rank 0 gets an error, nobody waits, and the next time all is written."""
    state, seen = with_items(40, workers), list[str]()

    def write() -> None:
        try:
            files_of(folder, state)
        except (RuntimeError, MemoryError) as error:
            seen.append(str(error))

    for error in (MemoryError("no room"), None):
        effect = error if workers.rank == failing else None
        with patch.object(state, "kept_vectors", side_effect=effect, wraps=state.kept_vectors):
            workers.first(write, state.answer)
    wanted = "no room" if failing == 0 else "ranks have done "
    assert len(seen) == workers.is_first
    assert all(one.startswith(wanted) for one in seen)


def main(folder: str) -> None:
    with Workers.from_environment("cpu") as workers:
        for failing in range(workers.world_size):
            fail_once(folder, failing, workers)
        left = sum(follow(folder, items, workers) for items in (1, 2, 3, 40, 300))
        Path(folder, f"rank{workers.rank}").write_text(str(left))


if __name__ == "__main__":
    main(sys.argv[1])
