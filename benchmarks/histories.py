"""CPU and bytes of a commit of histories, and of look-ups, by the number of users stored.

    OMP_NUM_THREADS=1 python -m benchmarks.histories run                     # 0.1, 1 and 5 million users; minutes, 8 GB
    OMP_NUM_THREADS=1 python -m benchmarks.histories run --users 20000000    # 32 GB of disk
    OMP_NUM_THREADS=1 python -m benchmarks.histories redis --url redis://127.0.0.1:6379/0      # empties that database

Every stored user has 50 items with times and 20 seen items, in one base per user shard. The commit has two events of
each of 50,000 users, chosen evenly: looking them up, extending their records, writing one delta per shard. Its CPU
(user and system) is that with all pages from the disk / with these pages in memory. Read is what came from the disk.
Own memory is by how much the first commit raises what is the process's alone; mapped are pages of files. Look-ups are
of known users whose pages are in memory: with the bases alone / with four deltas above each. The last column is the
share of a base that 4-byte item numbers instead of 8-byte keys would save.

`redis` brings such users to a Redis on this machine and prints the rate, Redis' memory per user, the time of a commit
per touched user, and look-ups through the server's reader with seen items: CPU of this process, and wall time.
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import I64, Peak, command_line, cpu_of_call, head, new_store, printed, row
from weir.contracts import (
    HistoryFile,
    HistoryFiles,
    ItemKeys,
    Label,
    Layout,
    LocalCache,
    Records,
    SeenItems,
    Store,
    StoreFormat,
    UserHistories,
    UserKeys,
    UserRows,
    WindowLog,
    ensure_format,
    hash_ids,
    open_shard,
    shards_of,
    write_user_file,
)
from weir.contracts.base import columns
from weir.pipelines.transforms.histories import TouchedUsers, write_delta
from weir.serving.histories.redis_config import FollowerConfig
from weir.serving.histories.redis_database import connect
from weir.serving.histories.redis_follower import Follower, FollowerMetrics
from weir.serving.histories.redis_reader import SharedHistories
from weir.serving.metrics import HistoryMetrics

app = command_line(__doc__)
SHARDS: Final = 8
LENGTH: Final = 50
SEEN: Final = 20
TOUCHED: Final = 50_000
BLOCK: Final = 20_000
DELTAS: Final = 4
ASKED: Final = 300


def blocks(users: I64, rng: np.random.Generator, known: ItemKeys | None = None) -> Iterator[UserRows]:
    """Yield users with full records, of `known` items or of any."""

    def drawn(shape: int | tuple[int, int]) -> ItemKeys:
        return ItemKeys(rng.integers(1, 1 << 60, shape) if known is None else rng.choice(known, shape))

    for start in range(0, len(users), BLOCK):
        mine = UserKeys(users[start : start + BLOCK])
        shape = (len(mine), LENGTH)
        items, times = drawn(shape), np.sort(rng.integers(0, 1 << 40, shape), axis=1)
        seen = SeenItems(drawn(SEEN * len(mine)), SEEN * np.arange(len(mine) + 1), np.zeros(len(mine), np.bool_))
        yield UserRows(mine, Records(np.full(len(mine), 2 * LENGTH), items, times), seen)


def base(store: Store, users: I64, rng: np.random.Generator, known: ItemKeys | None = None) -> HistoryFiles:
    """Write a base of each shard."""
    owners, found = shards_of(UserKeys(users), SHARDS), {}
    for shard in range(SHARDS):
        mine, name = users[owners == shard], HistoryFile.path(shard, "base", "0")
        entry = write_user_file(
            store, name, blocks(mine, rng, known), users=len(mine), seen=SEEN * len(mine), length=LENGTH, bound=1000
        )
        found[shard] = (HistoryFile.of(name, entry, shard, LENGTH),)
    return HistoryFiles(shards=found)


def store_with_users(
    store: Store, count: int, names: list[str] | None = None, known: ItemKeys | None = None
) -> tuple[I64, HistoryFiles]:
    """Commit a base of so many users, `names` among them; return the users' keys, and the files."""
    ensure_format(store, StoreFormat(layout=Layout(window_ms=3_600_000, user_shards=SHARDS, sketch={})))
    rng = np.random.default_rng(1)
    others = rng.integers(-(1 << 63), (1 << 63) - 1, count - len(names or ()))
    users = np.unique(np.append(others, hash_ids(names))) if names else np.unique(others)
    files = base(store, users, rng, known)
    WindowLog(store).commit(histories=tuple(files.files))
    return users, files


def events_of(users: I64, items: I64, times: I64) -> pa.Table:
    """Return events, all positive, of keys of users and items (n,) at times (n,)."""
    found = {columns.USER_KEY: users, columns.ITEM_KEY: items, columns.TIMESTAMP: times}
    return pa.table(found | {columns.LABEL: np.full(len(users), Label.POSITIVE, np.int8)})


def commit(store: Store, files: HistoryFiles, users: I64, number: int, rng: np.random.Generator) -> HistoryFiles:
    """Do to histories what one commit of two events of each of `TOUCHED` users does; return the files after it."""
    touched = np.repeat(rng.choice(users, min(TOUCHED, len(users)), replace=False), 2)
    owners, found = shards_of(UserKeys(touched), SHARDS), dict(files.shards)
    for shard in range(SHARDS):
        mine = touched[owners == shard]
        before = open_shard(store, files, shard, LENGTH, LocalCache())
        state = TouchedUsers.of(before, UserKeys(mine), LENGTH)
        items, times = rng.integers(1, 1 << 60, len(mine)), np.full(len(mine), (1 << 41) + number)
        state.extend(events_of(mine, items, times))
        name = HistoryFile.path(shard, f"commit{number}", "0")
        found[shard] = (*found[shard], write_delta(store, name, shard, state.delta(1000), 1000))
    return HistoryFiles(shards=found)


def drop_pages(store: Store, files: HistoryFiles) -> None:
    """Let the kernel forget the pages of files."""
    os.sync()
    for file in files.files:
        with Path(store.path(file.name)).open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def lookup_us(call: Callable[[UserKeys], object], users: I64, batch: int, rng: np.random.Generator) -> float:
    """Return the CPU microseconds per user of a call with batches of users; pages are read before."""
    asked = [UserKeys(some) for some in rng.choice(users, (ASKED, batch))]
    for some in asked:
        call(some)
    return 1e6 * cpu_of_call(lambda: [call(some) for some in asked]) / ASKED / batch


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
    rng, store = np.random.default_rng(3), Store(str(folder))
    users, files = store_with_users(store, count)
    stored = sum(file.size for file in files.files)
    drop_pages(store, files)
    blocks_before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    with Peak() as peak:
        after = commit(store, files, users, 0, np.random.default_rng(2))
    read = 512 * (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - blocks_before)
    warm = cpu_of_call(partial(commit, store, files, users, DELTAS, np.random.default_rng(2)))
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
    sizes = [f"{size / 1e6:.0f}" for size in (read, written, peak.own, peak.mapped)]
    costs = [f"{peak.cpu:.2f} / {warm:.2f}", *sizes, f"{milliseconds:.1f}"]
    row(f"{count:,}", f"{stored / 1e9:.2f}", *costs, *cells, f"{saved:.0%}")


@app.command()
def run(users: Annotated[list[int] | None, typer.Option(help="users stored; repeat")] = None) -> None:
    """Print the table."""
    head(
        "users", "stored GB", "commit CPU s", "read MB", "written MB", "own MB", "mapped MB", "open ms", "look-up us",
        "of 64, us each", "with seen items us", "of 64, seen, us each", "4-byte numbers save",
    )  # fmt: skip
    for count in users or [100_000, 1_000_000, 5_000_000]:
        with new_store("histories", Path.cwd()) as store:
            print(printed("benchmarks.histories", "one", count, store.url), end="", flush=True)


def shared_us(histories: SharedHistories, users: I64, batch: int, rng: np.random.Generator) -> list[str]:
    """Return the CPU and wall microseconds of a look-up of so many users."""
    asked = [UserKeys(some) for some in rng.choice(users, (ASKED, batch))]
    cpu, wall = time.process_time(), time.perf_counter()
    for some in asked:
        histories.look_up(some, np.arange(batch))
    spent = (time.process_time() - cpu, time.perf_counter() - wall)
    return [f"{1e6 * seconds / ASKED:.0f}" for seconds in spent]


@app.command()
def redis(url: Annotated[str, typer.Option(help="a database that may be emptied")], count: int = 200_000) -> None:
    """Print what histories in Redis cost."""
    database = connect(url, 60)
    database.flushdb()
    before, rng = database.info()["used_memory"], np.random.default_rng(3)
    with new_store("histories", Path.cwd()) as store:
        users, files = store_with_users(store, count)
        follower = Follower(store, FollowerConfig(redis=url, timeout_seconds=60), FollowerMetrics(CollectorRegistry()))
        started = time.perf_counter()
        follower.step()
        rate = count / (time.perf_counter() - started)
        size = (database.info()["used_memory"] - before) / count
        after = commit(store, files, users[:10_000], 0, rng)
        deltas = tuple(file for mine in after.shards.values() for file in mine[1:])
        WindowLog(store).commit(histories=deltas)
        started = time.perf_counter()
        follower.step()
        touched = 1e6 * (time.perf_counter() - started) / sum(file.rows for file in deltas)
        histories = SharedHistories(store, HistoryMetrics(CollectorRegistry()), url, 10)
        histories.catch_up()
        names = "users, loaded users/s, bytes per user, us per touched user"
        head(*names.split(", "), "alone, us CPU", "wall", "64, us CPU", "wall")
        cells = [cell for batch in (1, 64) for cell in shared_us(histories, users, batch, rng)]
        row(f"{count:,}", f"{rate:,.0f}", f"{size:,.0f}", f"{touched:.0f}", *cells)
    database.flushdb()


if __name__ == "__main__":
    app()
