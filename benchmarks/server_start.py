"""The start of a server: seconds until it is SERVING, and its memory, by the number of users in the store.

    OMP_NUM_THREADS=1 python -m benchmarks.server_start                        # up to 20 million users: 20 GB of disk
    OMP_NUM_THREADS=1 python -m benchmarks.server_start --users 100000000 --length 1 --seen 0      # opening only

The stores hold files of users, written through the contracts' own writer (16 user shards, a base each), and a bundle of
10,000 items by the trainer's own export. ``weir serve`` starts in a process of its own, with the files in the page
cache as the disk of the machine left them.

- ready: from the start of the process until its health is SERVING, and its CPU seconds (user and system) until then;
  `opening` is the part of opening the histories.
- own memory: what is anonymous of the process (``/proc/PID/smaps_rollup``): not the mapped files, which the kernel
  drops when memory is short. Mapped is what of the files was resident after the queries.
- query: a user by id, one after the other, with seen items left out; median and worst of 300 users, drawn at random.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import I64, command_line, cpu_seconds, head, row
from benchmarks.states import filled, item_id
from weir.contracts import (
    HistoryFile,
    ItemKeys,
    Layout,
    Records,
    SeenItems,
    Store,
    StoreFormat,
    UserKeys,
    UserRows,
    WindowLog,
    ensure_format,
    hash_ids,
    write_user_file,
)
from weir.serving.client import RetrievalClient, by_user
from weir.serving.histories import FollowedHistories
from weir.serving.metrics import HistoryMetrics
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle

app = command_line(__doc__)
ITEMS: Final = 10_000
SHARDS: Final = 16
BLOCK: Final = 1 << 15
QUERIES: Final = 300
BOUND: Final = 1000


@dataclass(frozen=True)
class Shape:
    """What is stored of a user: `length` positives with times, and so many `seen` items."""

    length: int
    seen: int


def user_id(number: int) -> str:
    """Return the id of a user that can be asked for."""
    return f"user-{number}"


@dataclass(frozen=True)
class Shard:
    """So many users of a shard, ascending: random keys, and among them those that will be asked for."""

    number: int
    users: int
    asked: I64
    items: ItemKeys
    shape: Shape

    def blocks(self) -> Iterator[UserRows]:
        """Yield the users block by block; each has the same items."""
        draw = np.random.default_rng(self.number)
        edges = np.linspace(-(2.0**63), 2.0**63, -(-self.users // BLOCK) + 1)
        for number, (low, high) in enumerate(pairwise(edges)):
            asked = self.asked[(self.asked >= low) & (self.asked < high)]
            wanted = min(BLOCK, self.users - number * BLOCK)
            yield self.rows(np.unique(np.concatenate([asked, self.drawn(draw, low, high, wanted - len(asked))])))

    def drawn(self, draw: np.random.Generator, low: float, high: float, count: int) -> I64:
        """Return so many keys of the shard within bounds."""
        keys = draw.integers(int(low), min(int(high), 2**63 - 1) - SHARDS, count)
        return keys - keys % SHARDS + self.number

    def rows(self, users: I64) -> UserRows:
        """Return rows for the given keys."""
        count, length, seen = len(users), self.shape.length, self.shape.seen
        items = np.broadcast_to(self.items[:length], (count, length))
        return UserRows(
            UserKeys(users),
            Records(np.full(count, length), ItemKeys(items), np.broadcast_to(np.arange(length), (count, length))),
            SeenItems(ItemKeys(np.tile(self.items[:seen], count)), np.arange(count + 1) * seen, np.zeros(count, bool)),
        )

    def write(self, store: Store) -> HistoryFile:
        """Write the file; counting first, since equal keys are drawn now and then."""
        users = sum(len(block.users) for block in self.blocks())
        name = HistoryFile.path(self.number, "base", "0")
        entry = write_user_file(
            store, name, self.blocks(), users=users, seen=users * self.shape.seen, length=self.shape.length, bound=BOUND
        )
        return HistoryFile(**entry.model_dump() | {"name": name}, shard=self.number, length=self.shape.length)


def prepare(store: Store, users: int, shape: Shape) -> None:
    """Write bundle and histories."""
    ensure_format(store, StoreFormat(layout=Layout(window_ms=3_600_000, user_shards=SHARDS, sketch={})))
    export_bundle(store, filled(TrainerConfig(device="cpu"), ITEMS)[0])
    asked = hash_ids([user_id(number) for number in range(min(users, QUERIES))])
    items = ItemKeys(hash_ids([item_id(number) for number in range(max(shape.length, shape.seen))]))
    shards = [Shard(n, users // SHARDS, asked[asked % SHARDS == n], items, shape) for n in range(SHARDS)]
    WindowLog(store).commit(histories=tuple(shard.write(store) for shard in shards))


@contextmanager
def started(store: Store, *settings: str) -> Iterator[tuple[int, str, float, float]]:
    """Run ``weir serve`` with settings (``key=value``).

    Yields process, address, and the seconds and CPU seconds until it was SERVING.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "weir", "serve", "--store", store.url, "--port", "0"]
    for setting in ("serving.metrics_port=0", *settings):
        command += ["--set", setting]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1)
    try:
        line = next(line for line in process.stderr or () if "ready: gRPC on" in line)
        ready, spent = time.monotonic() - begin, cpu_seconds(process.pid)
        yield process.pid, line.partition("gRPC on ")[2].partition(",")[0], ready, spent
    finally:
        process.terminate()
        process.communicate()


def memory(pid: int) -> tuple[float, float]:
    """Return what is anonymous of a process, and what is mapped from files and resident; MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return sizes["Anonymous"] / 1024, (sizes["Rss"] - sizes["Anonymous"]) / 1024


def query_milliseconds(target: str, users: int) -> list[float]:
    """Ask for users one by one; raises `RuntimeError` where one is unknown."""
    found = []
    with RetrievalClient(target) as client:
        client.info()
        for number in np.random.default_rng(0).permutation(min(users, QUERIES)).tolist():
            begin = time.perf_counter()
            [hits] = client.retrieve([by_user(user_id(number), 100)], exclude_seen=True).hits
            found.append(1000 * (time.perf_counter() - begin))
            if hits.fallback:
                raise RuntimeError(f"{user_id(number)} is unknown")
    return found


def opening_seconds(store: Store) -> float:
    """Return the seconds in which histories are opened, in this process."""
    begin = time.perf_counter()
    FollowedHistories(store, HistoryMetrics(CollectorRegistry())).catch_up()
    return time.perf_counter() - begin


@app.command(help=__doc__)
def main(
    users: Annotated[list[int], typer.Option(help="users of a store; may be repeated")] = [  # noqa: B006 - typer copies it
        100_000,
        1_000_000,
        5_000_000,
        20_000_000,
    ],
    length: Annotated[int, typer.Option(help="positives stored of a user")] = 50,
    seen: Annotated[int, typer.Option(help="seen items stored of a user")] = 20,
    folder: Annotated[Path | None, typer.Option(help="where stores are written, and removed")] = None,
) -> None:
    """Measure and print, a store at a time."""
    head(
        "users",
        "files, GB",
        "ready, s",
        "CPU, s",
        "opening, ms",
        "own memory, MiB",
        "mapped, MiB",
        "query, ms",
        "worst, ms",
    )
    for count in users:
        path = Path(tempfile.mkdtemp(prefix="weir-server-start-", dir=folder))
        try:
            store = Store(str(path))
            prepare(store, count, Shape(length, seen))
            size = sum(stat.size for stat in store.find("histories").values()) / 1e9
            opening = 1000 * opening_seconds(store)
            with started(store) as (pid, target, ready, spent):
                times = query_milliseconds(target, count)
                own, mapped = memory(pid)
            took = (float(np.median(times)), max(times))
            row(f"{count:,}", size, ready, spent, opening, round(own), round(mapped), *took)
        finally:
            shutil.rmtree(path)


if __name__ == "__main__":
    app()
