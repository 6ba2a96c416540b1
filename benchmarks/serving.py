"""A server under load: queries per second, latency and CPU per query, next to the limits of the same machine.

    python -m benchmarks.serving prepare FOLDER        # stores with a bundle each; a million items take minutes
    python -m benchmarks.serving load FOLDER           # one line per store and concurrency, about half a minute a store

`prepare` exports item vectors of random directions (64 dimensions, cosine) and a SASRec tower as it is before
training, by the trainer's own export. `load` starts ``weir serve`` on each store, in a process of its own; two client
processes keep 1, 8 or 64 calls in flight (closed loop, one query a call: a history of 50 items, k = 100) and do not
parse the answers.

In the same run, with as many calls in flight, the server answers empty calls (the health check), which is what gRPC
costs; and this process runs the tower and FAISS alone on the same bundle, with one thread, in batches of the size that
the server formed. CPU is user and system time. It and the ratios are robust on a busy machine; latency and queries
per second are not: `cores` is the CPU that the server got. For one core each: OMP_NUM_THREADS=1.

What TLS and tokens cost: the same with WEIR_SERVING__TLS__... and WEIR_SERVING__AUTH__... for the server, and
WEIR_CLIENT__... for the clients (docs/security.md).
"""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import faiss
import grpc.aio
import numpy as np
import numpy.typing as npt
import typer
from grpc_health.v1 import health_pb2
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness import command_line, head, row, status
from benchmarks.states import filled, item_id
from weir.config import load_settings
from weir.contracts import BundleLog, ItemKeys, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access.channel import SentToken, credentials_of
from weir.serving.bundle import LoadedBundle
from weir.serving.client import RetrievalClient, RetrievalError, by_history
from weir.serving.loading import load_bundle
from weir.trainer.config import TrainerConfig
from weir.trainer.export import export_bundle
from weir.trainer.export.index import factory
from weir.up.ports import free_port

app = command_line(__doc__)
Folder = Annotated[Path, typer.Argument(help="where the stores are")]
Sizes = Annotated[list[int], typer.Option("--items", help="items of a bundle; may be repeated")]
SIZES: Final = [10_000, 100_000, 1_000_000]

K: Final = 100
HISTORY: Final = 50
CLIENTS: Final = 2
REQUESTS: Final = 500
WARM_UP: Final = 1.0
RETRIEVE: Final = f"/{pb.DESCRIPTOR.services_by_name['RetrievalService'].full_name}/Retrieve"
CHECK: Final = "/grpc.health.v1.Health/Check"
EMPTY: Final = health_pb2.HealthCheckRequest().SerializeToString()
COLUMNS: Final = (
    "items | index | calls | queries/s | p50 ms | p99 ms | cores | batch | CPU us/query | empty call, us | tower, us | "
    "FAISS, us | CPU / (empty + tower + FAISS) | queries/s / empty calls/s"
)


@app.command()
def prepare(folder: Folder, items: Sizes = SIZES) -> None:
    """Export each catalogue with a flat index, and with the one that the trainer chooses."""
    for size in items:
        for index in dict.fromkeys(("Flat", factory(size, "auto"))):
            started = time.process_time()
            store = Store(str(folder / f"{size:08d}-{index}"))
            manifest = export_bundle(store, filled(TrainerConfig(device="cpu", index=index), size)[0])
            spent = time.process_time() - started
            bytes_each = ", ".join(f"{entry.name} {entry.size / size:.1f}" for entry in manifest.files)
            print(f"{size} items, {index}: {spent:.1f} CPU-seconds; bytes per item: {bytes_each}", flush=True)


@app.command()
def load(
    folder: Folder, seconds: Annotated[float, typer.Option(help="of every measurement")] = 4.0, only: str = "*"
) -> None:
    """Print the table."""
    head(*COLUMNS.split(" | "))
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            store = Store(str(path))
            bundle = load_bundle(BundleLog(store), str(BundleLog(store).current()))
            with served(store) as server:
                for calls in (1, 8, 64):
                    row(*measured(bundle, server, clients, calls, seconds))
                rss, peak = (status(name, server.pid) / 2**20 for name in ("VmRSS", "VmHWM"))
            busy = os.getloadavg()[0]
            print(f"  {path.name}: {rss:.0f} MiB resident, {peak:.0f} at most; load average {busy:.1f}", flush=True)


@contextmanager
def client_processes() -> Iterator[Executor]:
    """Start the clients' processes; all have finished their imports when this returns."""
    context = multiprocessing.get_context("spawn")
    all_started = context.Barrier(CLIENTS)
    with ProcessPoolExecutor(CLIENTS, context, all_started.wait) as clients:
        list(clients.map(abs, range(CLIENTS)))
        yield clients


def measured(
    bundle: LoadedBundle, server: "Server", clients: Executor, calls: int, seconds: float
) -> tuple[object, ...]:
    """Return the cells of one row."""
    histories = random_histories(bundle.items)
    asked = loaded(server, clients, Calls(RETRIEVE, requests_for(histories), calls), seconds)
    empty = loaded(server, clients, Calls(CHECK, [EMPTY], calls), seconds)
    batch = max(1, round(asked.batch))
    tower, search = alone(bundle, bundle.item_rows.keys[histories], batch, seconds / 2)
    p50, p99 = 1e3 * np.quantile(asked.latencies, (0.5, 0.99))
    return (
        *(bundle.items, bundle.manifest.index.type, calls),
        *(f"{asked.rate:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{asked.cores:.2f}", f"{asked.batch:.1f}"),
        *(f"{us:.0f}" for us in (asked.cpu_us, empty.cpu_us, tower, search)),
        f"{asked.cpu_us / (empty.cpu_us + tower + search):.2f}",
        f"{asked.rate / empty.rate:.2f}",
    )


def random_histories(items: int) -> npt.NDArray[np.int64]:
    """Return item numbers, (requests, history)."""
    return np.random.default_rng(0).integers(0, items, (REQUESTS, HISTORY))


def requests_for(histories: npt.NDArray[np.int64]) -> list[bytes]:
    """Return a serialised request for each history."""
    asks = [by_history([item_id(item) for item in history], K) for history in histories.tolist()]
    return [pb.RetrieveRequest(queries=[query]).SerializeToString() for query in asks]


class Calls(NamedTuple):
    """A gRPC method, serialised requests for it, the number in flight, and the connections of a client process."""

    method: str
    requests: list[bytes]
    in_flight: int
    connections: int = 1


class Load(NamedTuple):
    """Results of a load: seconds of each call, calls per second, the server's CPU, and queries per batch."""

    latencies: npt.NDArray[np.float64]
    rate: float
    cpu_us: float
    cores: float
    batch: float


def loaded(server: "Server", clients: Executor, calls: Calls, seconds: float) -> Load:
    """Keep calls in flight for so long."""
    used = min(CLIENTS, calls.in_flight)
    begin = time.monotonic() + WARM_UP
    share = calls._replace(in_flight=calls.in_flight // used)
    running = [clients.submit(call, server.target, share, begin, begin + seconds) for _ in range(used)]
    time.sleep(max(0.0, begin - time.monotonic()))
    before, started = server.metrics(), time.monotonic()
    time.sleep(seconds)
    after, ended = server.metrics(), time.monotonic()
    latencies = np.concatenate([future.result() for future in running])
    rate = len(latencies) / seconds
    spent, batches, queries = (
        after[metric] - before[metric]
        for metric in ("process_cpu_seconds_total", "weir_batch_queries_count", "weir_batch_queries_sum")
    )
    cores = spent / (ended - started)
    return Load(latencies, rate, 1e6 * cores / rate, cores, queries / max(batches, 1))


def call(target: str, calls: Calls, begin: float, end: float) -> npt.NDArray[np.float64]:
    """Be a client process: return the seconds of the calls that ended between two moments of the monotonic clock."""

    async def caller(method: Callable[[bytes], Any], seed: int, found: list[float]) -> None:
        number = seed * 37
        while (sent := time.monotonic()) < end:
            await method(calls.requests[number % len(calls.requests)])
            number += 1
            if begin <= (now := time.monotonic()) < end:
                found.append(now - sent)

    async def run() -> list[float]:
        found: list[float] = []
        async with AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(channel_to(target)) for _ in range(calls.connections)]
            methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
                channel.unary_unary(calls.method) for channel in channels
            ]
            seeds = range(calls.in_flight)
            await asyncio.gather(*(caller(methods[seed % len(methods)], seed, found) for seed in seeds))
        return found

    return np.array(asyncio.run(run()))


def channel_to(target: str) -> grpc.aio.Channel:
    """Return a channel as the settings of clients say, with a connection of its own."""
    config, options = load_settings().client, (("grpc.use_local_subchannel_pool", 1),)
    if not config.tls:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials_of(config, SentToken.of(config)), options)


def alone(bundle: LoadedBundle, histories: npt.NDArray[np.int64], batch: int, seconds: float) -> tuple[float, float]:
    """Return the CPU of tower and search in this process, in microseconds per query."""
    faiss.omp_set_num_threads(1)
    vectors = bundle.users(ItemKeys(histories))

    def per_query(run: Callable[[slice], object]) -> float:
        run(slice(0, batch))
        started, ends, done = time.process_time(), time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            start = done % (len(histories) - batch)
            run(slice(start, start + batch))
            done += batch
        return 1e6 * (time.process_time() - started) / done

    tower = per_query(lambda rows: bundle.users(ItemKeys(histories[rows])))
    return tower, per_query(lambda rows: bundle.index.search(vectors[rows], K))


@dataclass(frozen=True)
class Server:
    """A running ``weir serve``."""

    pid: int
    target: str
    metrics_port: int

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics that have no labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@contextmanager
def served(store: Store, *settings: str) -> Iterator[Server]:
    """Run ``weir serve`` on a store, with settings (``name=value``); it answers correctly when this returns."""
    port, metrics_port = free_port(), free_port()
    arguments = ["--store", store.url, "--port", str(port)]
    for setting in (f"serving.metrics_port={metrics_port}", *settings):
        arguments += ["--set", setting]
    process = subprocess.Popen([sys.executable, "-m", "weir", "serve", *arguments], stderr=subprocess.DEVNULL)
    try:
        server = Server(process.pid, f"127.0.0.1:{port}", metrics_port)
        with RetrievalClient(server.target, config=load_settings().client) as client:
            for _ in range(600):
                try:
                    hits = client.retrieve([by_history([item_id(0)], K)]).hits[0]
                    break
                except RetrievalError:
                    time.sleep(0.1)
        if len(set(hits.item_ids)) != K or hits.fallback:
            raise RuntimeError(f"{store.url}: asked for {K} items, got {len(hits.item_ids)}, fallback: {hits.fallback}")
        yield server
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    app()
