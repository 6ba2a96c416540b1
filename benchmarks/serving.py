"""A server under load, and its start: CPU per query, latency and memory, next to the limits of the same machine.

    python -m benchmarks.serving prepare FOLDER        # stores with a bundle each; a million items take minutes
    python -m benchmarks.serving load FOLDER           # one line per store and concurrency, about half a minute a store
    python -m benchmarks.serving load FOLDER --front python --front native     # compiled, after `make native`
    python -m benchmarks.serving processes FOLDER      # several processes beside one, and beside as many servers
    python -m benchmarks.serving start                 # by the number of users; 20 million take 20 GB of disk

`prepare` exports item vectors of random directions (64 dimensions, cosine) and an untrained SASRec tower. `load` starts
``weir serve`` on each store; two client processes keep 1, 8 or 64 calls in flight (closed loop, one query a call: a
history of 50 items, k = 100) and do not parse the answers.

In the same run the server answers as many empty calls (the health check), which is the cost of gRPC; and this process
runs the tower and FAISS alone on the same bundle, with one thread, in batches of the size that the server formed. CPU
is user and system time; `cores` is the CPU that the server got. For one core each: OMP_NUM_THREADS=1. For TLS and
tokens set WEIR_SERVING__TLS__..., WEIR_SERVING__AUTH__... and WEIR_CLIENT__... (docs/security.md).
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Final, Literal

import faiss
import numpy as np
import typer
from prometheus_client import CollectorRegistry

from benchmarks.harness import (
    CHECK,
    EMPTY,
    RETRIEVE,
    Calls,
    K,
    Load,
    Server,
    client_processes,
    command_line,
    descendants,
    head,
    items_of,
    loaded,
    new_store,
    random_histories,
    requests_for,
    row,
    served,
    started,
    status,
)
from benchmarks.histories import store_with_users
from benchmarks.states import filled, item_id
from weir.contracts import BundleLog, ItemKeys, Store, hash_ids
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.client import RetrievalClient, by_embedding, by_history, by_item, by_user
from weir.serving.histories.files import FollowedHistories
from weir.serving.metrics import HistoryMetrics
from weir.trainer.export import export_bundle
from weir.trainer.export.index import factory
from weir.trainer.settings.trainer import TrainerConfig

app = command_line(__doc__)
Stores = Annotated[Path, typer.Argument(help="where the stores are")]
Sizes = Annotated[list[int], typer.Option("--items", help="items of a bundle; may be repeated")]
Seconds = Annotated[float, typer.Option(help="of every measurement")]
Only = Annotated[str, typer.Option(help="pattern of the names of stores")]
By = Literal["history", "embedding", "item"]
SIZES: Final = [10_000, 100_000, 1_000_000]
USERS: Final = [100_000, 1_000_000, 5_000_000, 20_000_000]
CALLS: Final = (1, 8, 64)
CONNECTIONS: Final = 8
KNOWN: Final = 10_000
QUERIES: Final = 300
LOAD: Final = (
    "items | index | front | calls | queries/s | p50 ms | p99 ms | cores | batch | CPU us/query | empty call, us | "
    "tower, us | FAISS, us | CPU / (empty + tower + FAISS) | queries/s / empty calls/s"
)
START: Final = (
    "users | files, GB | ready, s | CPU, s | opening, ms | own memory, MiB | mapped, MiB | query, ms | worst, ms"
)


@app.command()
def prepare(folder: Stores, items: Sizes = SIZES) -> None:
    """Export each catalogue with a flat index, and with the one that the trainer chooses."""
    for size in items:
        for index in dict.fromkeys(("Flat", factory(size, "auto"))):
            begin = time.process_time()
            store = Store(str(folder / f"{size:08d}-{index}"))
            manifest = export_bundle(store, filled(TrainerConfig(device="cpu", index=index), size))
            spent = time.process_time() - begin
            bytes_each = ", ".join(f"{entry.name} {entry.size / size:.1f}" for entry in manifest.files)
            print(f"{size} items, {index}: {spent:.1f} CPU-seconds; bytes per item: {bytes_each}", flush=True)


@app.command()
def load(
    folder: Stores,
    seconds: Seconds = 4.0,
    only: Only = "*",
    front: Annotated[list[str], typer.Option(help="serving.front; may be repeated")] = ["python"],  # noqa: B006
    *,
    exclude_seen: Annotated[bool, typer.Option(help="leave the items of the history out")] = False,
    by: Annotated[By, typer.Option(help="what a query is made from; only a history needs the tower")] = "history",
) -> None:
    """Print a row for each store, number of calls in flight and front, and the memory of each server.

    Empty calls are those of the first front.
    """
    head(*LOAD.split(" | "))
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            store = Store(str(path))
            bundle = load_bundle(BundleLog(store), str(BundleLog(store).current()))
            requests = asked_by(bundle, by, exclude_seen=exclude_seen)
            with ExitStack() as stack:
                servers = {name: stack.enter_context(served(store, f"serving.front={name}")) for name in front}
                for calls in CALLS:
                    empty = loaded(servers[front[0]], clients, Calls(CHECK, [EMPTY], calls), seconds)
                    for name, server in servers.items():
                        asked = loaded(server, clients, Calls(RETRIEVE, requests, calls), seconds)
                        tower, search = alone(bundle, asked.batch, seconds / 2)
                        parts = (empty.cpu_us, tower if by == "history" else 0.0, search)
                        about = (bundle.items, bundle.manifest.index.type, name, calls)
                        row(*about, *cells(asked, parts), f"{asked.rate / empty.rate:.2f}")
                for name, server in servers.items():
                    rss, peak = (status(size, server.pid) / 2**20 for size in ("VmRSS", "VmHWM"))
                    busy = f"load average {os.getloadavg()[0]:.1f}"
                    print(f"  {path.name}, {name}: {rss:.0f} MiB resident, {peak:.0f} at most; {busy}", flush=True)


def cells(asked: Load, parts: Sequence[float]) -> list[str]:
    """Return the cells of a load, the CPU of its parts, and the ratio of both."""
    p50, p99 = 1e3 * np.quantile(asked.latencies, (0.5, 0.99))
    return [
        *(f"{asked.rate:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{asked.cores:.2f}", f"{asked.batch:.1f}"),
        *(f"{us:.0f}" for us in (asked.cpu_us, *parts)),
        f"{asked.cpu_us / sum(parts):.2f}",
    ]


def asked_by(bundle: LoadedBundle, by: By, *, exclude_seen: bool) -> list[bytes]:
    """Return requests with random histories, or for what is like their last items, by vectors or by ids."""
    histories = random_histories(bundle.items)
    if by == "history":
        queries = [by_history(bundle.ids[rows].tolist(), K) for rows in histories]
    elif by == "embedding":
        queries = [by_embedding(vector, K) for vector in bundle.exact.vectors[histories[:, -1]]]
    else:
        queries = [by_item(name, K) for name in bundle.ids[histories[:, -1]].tolist()]
    requests = (pb.RetrieveRequest(queries=[query], exclude_seen=exclude_seen) for query in queries)
    return [request.SerializeToString() for request in requests]


def alone(bundle: LoadedBundle, batch: float, seconds: float) -> tuple[float, float]:
    """Return the CPU of tower and search in this process for random histories, in microseconds per query."""
    faiss.omp_set_num_threads(1)
    histories, size = bundle.item_rows.keys[random_histories(bundle.items)], max(1, round(batch))
    vectors = bundle.users(ItemKeys(histories))

    def per_query(run: Callable[[slice], object]) -> float:
        run(slice(0, size))
        begin, ends, done = time.process_time(), time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            start = done % (len(histories) - size)
            run(slice(start, start + size))
            done += size
        return 1e6 * (time.process_time() - begin) / done

    tower = per_query(lambda rows: bundle.users(ItemKeys(histories[rows])))
    return tower, per_query(lambda rows: bundle.index.search(vectors[rows], K))


@app.command()
def processes(
    folder: Stores,
    count: Annotated[int, typer.Option("--processes", help="processes of the server")] = 2,
    rounds: int = 5,
    seconds: Seconds = 4.0,
    only: Only = "*",
) -> None:
    """Compare several processes on one port with one process, and with as many servers.

    Both servers are asked in turn, with 64 calls under way for each process, by eight connections a client process;
    printed is the median of the rounds. PSS (``/proc/PID/smaps_rollup``) counts once what processes share.
    """
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            print(f"\n{path.name}\n")
            store = Store(str(path))
            show_load(store, clients, (1, count), rounds, seconds)
            print(flush=True)
            several, servers = (memory_of(store, clients, each, seconds) for each in ([count], [1] * count))
            head("memory", "PSS, MiB", "ratio")
            for name, size in ((f"{count} servers", servers), (f"{count} processes", several)):
                row(name, f"{size / 2**20:.0f}", f"{size / servers:.2f}")


def show_load(store: Store, clients: Executor, counts: Sequence[int], rounds: int, seconds: float) -> None:
    """Print a row for each number of processes."""
    found: dict[int, list[Load]] = {count: [] for count in counts}
    with ExitStack() as stack:
        servers = {count: stack.enter_context(several_processes(store, count)) for count in counts}
        for _ in range(rounds):
            for count, server in servers.items():
                found[count].append(loaded(server, clients, calls_of(store, count), seconds))
    head("processes", "queries/s", "cores", "batch", "CPU us/query", "ratio")
    one = np.median([each.cpu_us for each in found[counts[0]]])
    for count, loads in found.items():
        figures = [(each.rate, each.cores, each.batch, each.cpu_us) for each in loads]
        rate, cores, batch, cpu = np.median(figures, axis=0)
        row(count, f"{rate:.0f}", f"{cores:.2f}", f"{batch:.1f}", f"{cpu:.0f}", f"{cpu / one:.3f}")


def memory_of(store: Store, clients: Executor, counts: Sequence[int], seconds: float) -> float:
    """Return the PSS of servers with so many processes each, in bytes, after they have been asked for a while."""
    with ExitStack() as stack:
        servers = [stack.enter_context(several_processes(store, count)) for count in counts]
        for server, count in zip(servers, counts, strict=True):
            loaded(server, clients, calls_of(store, count), seconds)
        return 1024.0 * sum(sizes(pid)["Pss"] for server in servers for pid in descendants(server.pid))


def calls_of(store: Store, count: int) -> Calls:
    """Return what a server with so many processes is asked."""
    return Calls(RETRIEVE, requests_for(random_histories(items_of(store))), CALLS[-1] * count, CONNECTIONS)


def several_processes(store: Store, count: int) -> AbstractContextManager[Server]:
    """Start a server: however the kernel spreads connections over its processes, no call is cancelled unread."""
    return served(store, f"serving.processes={count}", f"serving.queue_calls={CALLS[-1] * count}")


def sizes(pid: int) -> dict[str, int]:
    """Return the sizes of a process in ``/proc/PID/smaps_rollup``, in KiB, by name."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return {line.partition(":")[0]: int(line.split()[1]) for line in lines[1:]}


@app.command()
def start(users: Annotated[list[int], typer.Option(help="users of a store; may be repeated")] = USERS) -> None:
    """Measure the start of a server, and its memory, by the number of users in the store.

    The stores hold a base of users per shard and a bundle of 10,000 items. *ready*: from the start of the process until
    its health is SERVING, with its CPU; *opening*: the part of the histories. *own*: anonymous memory of the process;
    *mapped*: resident pages of files after the queries. *query*: a user by id, one after the other, without seen items;
    median and worst of 300.
    """
    head(*START.split(" | "))
    keys = ItemKeys(hash_ids([item_id(number) for number in range(KNOWN)]))
    for count in users:
        with new_store("start") as store:
            names = [f"user-{number}" for number in range(min(count, QUERIES))]
            store_with_users(store, count, names, keys)
            export_bundle(store, filled(TrainerConfig(device="cpu"), KNOWN))
            size = sum(stat.size for stat in store.find("histories").values()) / 1e9
            begin = time.perf_counter()
            FollowedHistories(store, HistoryMetrics(CollectorRegistry())).catch_up()
            opening = 1000 * (time.perf_counter() - begin)
            with started(store) as server:
                times = query_milliseconds(server.target, names)
                own, resident = (sizes(server.pid)[name] / 1024 for name in ("Anonymous", "Rss"))
            took = (float(np.median(times)), max(times))
            memory = (round(own), round(resident - own))
            row(f"{count:,}", size, server.ready, server.spent, opening, *memory, *took)


def query_milliseconds(target: str, users: list[str]) -> list[float]:
    """Ask for users one by one; raises `RuntimeError` where one is unknown."""
    found = []
    with RetrievalClient(target) as client:
        client.info()
        for user in np.random.default_rng(0).permutation(users).tolist():
            begin = time.perf_counter()
            [hits] = client.retrieve([by_user(user, K)], exclude_seen=True).hits
            found.append(1000 * (time.perf_counter() - begin))
            if hits.fallback:
                raise RuntimeError(f"{user} is unknown")
    return found


if __name__ == "__main__":
    app()
