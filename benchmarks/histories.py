"""What a commit of histories costs, and a look-up, by the number of users stored.

    OMP_NUM_THREADS=1 python -m benchmarks.histories run                     # 0.1, 1 and 5 million users; minutes, 8 GB
    OMP_NUM_THREADS=1 python -m benchmarks.histories run --users 20000000    # 32 GB of disk

Every stored user has 50 items with times and 20 seen items, in one base per user shard. The commit touches up to
100,000 users with one event each, chosen evenly: looking them up, extending their records, writing one delta per shard.
Costs are CPU time (user and system); memory is by how much the commit raises the peak, mapped pages included. Look-ups
are of known users whose pages are in memory: with the bases alone / with four deltas above each. The last column is
what 4-byte item numbers instead of 8-byte keys would save, share of the bytes of a base.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import typer

from benchmarks.harness import I64, command_line, head, row, status
from contracts import (
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    LocalCache,
    Records,
    SeenItems,
    Store,
    UserHistories,
    UserKeys,
    UserRows,
    columns,
    open_shard,
    shards_of,
    write_user_file,
)
from pipelines.user_state import TouchedUsers, write_delta

app = command_line(__doc__)
SHARDS: Final = 8
LENGTH: Final = 50
SEEN: Final = 20
EVENTS: Final = 100_000
BLOCK: Final = 20_000
DELTAS: Final = 4
ASKED: Final = 300


def blocks(users: I64, rng: np.random.Generator) -> Iterator[UserRows]:
    """Yield users with full records."""
    for start in range(0, len(users), BLOCK):
        mine = UserKeys(users[start : start + BLOCK])
        shape = (len(mine), LENGTH)
        items, times = rng.integers(1, 1 << 60, shape), np.sort(rng.integers(0, 1 << 40, shape), axis=1)
        seen = SeenItems(
            ItemKeys(rng.integers(1, 1 << 60, SEEN * len(mine))),
            SEEN * np.arange(len(mine) + 1),
            np.zeros(len(mine), np.bool_),
        )
        yield UserRows(mine, Records(np.full(len(mine), 2 * LENGTH), ItemKeys(items), times), seen)


def base(store: Store, users: I64, rng: np.random.Generator) -> HistoryFiles:
    """Write a base of each shard."""
    owners, found = shards_of(UserKeys(users), SHARDS), {}
    for shard in range(SHARDS):
        mine, name = users[owners == shard], HistoryFile.path(shard, "base", "0")
        entry = write_user_file(
            store, name, blocks(mine, rng), users=len(mine), seen=SEEN * len(mine), length=LENGTH, bound=1000
        )
        found[shard] = (HistoryFile.of(name, entry, shard, LENGTH),)
    return HistoryFiles(shards=found)


def commit(store: Store, files: HistoryFiles, users: I64, number: int, rng: np.random.Generator) -> HistoryFiles:
    """Do to histories what one commit of `EVENTS` events does; return the files after it."""
    touched = rng.choice(users, EVENTS)
    owners, found = shards_of(UserKeys(touched), SHARDS), dict(files.shards)
    for shard in range(SHARDS):
        mine = touched[owners == shard]
        before = open_shard(store, files, shard, LENGTH, LocalCache())
        state = TouchedUsers.of(before, UserKeys(mine))
        state.extend(
            pa.table(
                {
                    columns.USER_KEY: mine,
                    columns.ITEM_KEY: rng.integers(1, 1 << 60, len(mine)),
                    columns.TIMESTAMP: np.full(len(mine), (1 << 41) + number),
                    columns.LABEL: np.ones(len(mine), np.int8),
                }
            )
        )
        name = HistoryFile.path(shard, f"commit{number}", "0")
        found[shard] = (*found[shard], write_delta(store, name, shard, state.delta(1000), 1000))
    return HistoryFiles(shards=found)


def lookup_us(call: Callable[[UserKeys], object], users: I64, batch: int, rng: np.random.Generator) -> float:
    """Return the CPU microseconds per user of a call with batches of users; pages are read before."""
    asked = rng.choice(users, (ASKED, batch))
    for some in asked:
        call(UserKeys(some))
    started = time.process_time()
    for some in asked:
        call(UserKeys(some))
    return 1e6 * (time.process_time() - started) / ASKED / batch


def lookups(histories: UserHistories, users: I64, rng: np.random.Generator) -> list[str]:
    """Return the cells of records, and of records with seen items, each alone and in batches of 64."""

    def both(some: UserKeys) -> None:
        found = histories.find(some)
        found.records()
        found.seen(np.arange(len(some)))

    ways = (lambda some: histories.find(some).records(), both)
    return [f"{lookup_us(call, users, batch, rng):.1f}" for call in ways for batch in (1, 64)]


@app.command()
def one(count: int, folder: Path) -> None:
    """Print the row of one number of users; a process of its own, so that its peak of memory is its own."""
    rng, store = np.random.default_rng(1), Store(str(folder))
    users = np.unique(rng.integers(-(1 << 63), (1 << 63) - 1, count))
    files = base(store, users, rng)
    stored = sum(file.size for file in files.files)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    before, started = status("VmRSS"), time.process_time()
    after = commit(store, files, users, 0, rng)
    seconds, peak = time.process_time() - started, status("VmHWM") - before
    written = sum(file.size for shard in after.shards.values() for file in shard[1:])
    histories, opened = UserHistories(store, SHARDS), time.perf_counter()
    histories.take_in(files)
    milliseconds = 1e3 * (time.perf_counter() - opened)
    cells = lookups(histories, users, rng)
    for number in range(1, DELTAS):
        after = commit(store, after, users, number, rng)
    histories.take_in(after)
    cells = [" / ".join(pair) for pair in zip(cells, lookups(histories, users, rng), strict=True)]
    saved = 4 * (LENGTH + SEEN) * len(users) / stored
    costs = [f"{seconds:.2f}", f"{written / 1e6:.0f}", f"{peak / 1e6:.0f}", f"{milliseconds:.1f}"]
    row(f"{count:,}", f"{stored / 1e9:.2f}", *costs, *cells, f"{saved:.0%}")


@app.command()
def run(users: Annotated[list[int] | None, typer.Option(help="users stored; repeat")] = None) -> None:
    """Print the table."""
    head(
        "users", "stored GB", "commit CPU s", "written MB", "memory MB", "open ms", "look-up us", "of 64, us each",
        "with seen items us", "of 64, us each", "4-byte numbers save",
    )  # fmt: skip
    for count in users or [100_000, 1_000_000, 5_000_000]:
        folder = tempfile.mkdtemp(dir=Path.cwd(), prefix=".histories-")
        try:
            command = [sys.executable, "-m", "benchmarks.histories", "one", str(count), folder]
            subprocess.run(command, check=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    app()
