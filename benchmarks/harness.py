"""What the benchmarks share: command line, data sets, tables, clocks, memory, Zipf's law, servers and their load."""

import asyncio
import json
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Final, NamedTuple, Self

import grpc.aio
import numpy as np
import numpy.typing as npt
import typer
from grpc_health.v1 import health_pb2
from prometheus_client.parser import text_string_to_metric_families

from weir.config import load_settings
from weir.contracts import BundleLog, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access.channel import SentToken, credentials_of
from weir.serving.client import RetrievalClient, by_history
from weir.up.ports import free_port

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
DATA: Final = Path(os.pardir) / "shared" / "data"
Data = Annotated[Path, typer.Option(envvar="WEIR_DATA", help="folder of the data sets")]

K: Final = 100
HISTORY: Final = 50
REQUESTS: Final = 500
CLIENTS: Final = 2
WARM_UP: Final = 1.0
RETRIEVE: Final = f"/{pb.DESCRIPTOR.services_by_name['RetrievalService'].full_name}/Retrieve"
CHECK: Final = "/grpc.health.v1.Health/Check"
EMPTY: Final = health_pb2.HealthCheckRequest().SerializeToString()


def command_line(description: str | None) -> typer.Typer:
    """Return an app whose help is a module's docstring as it is written."""
    return typer.Typer(help=description, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def head(*names: str) -> None:
    """Print the head of a Markdown table."""
    row(*names)
    row(*("---" for _ in names))


def interactions_of(folder: Path, name: str) -> Path:
    """Return the log of a data set; where there is none, say so and end, as after work that is done."""
    log = folder / name / "interactions.parquet"
    if not log.exists():
        print(f"left out: {log} is not there; WEIR_DATA names the folder of the data sets")
        raise typer.Exit
    return log


def row(*cells: object) -> None:
    """Print a row of a Markdown table; floats that are not formatted yet get four digits."""
    texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


@contextmanager
def plotted(picture: Path, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Yield axes side by side, and save them as a picture of so many inches."""
    import matplotlib as mpl  # noqa: PLC0415  only pictures need it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained")
    yield axes
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"\n{picture}")


@contextmanager
def running(command: Sequence[str], output: IO[bytes] | int) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program until the block ends; `output` takes what it prints."""
    process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def printed(module: str, *arguments: object) -> str:
    """Run a module in a process of its own; return its output, or raise `subprocess.CalledProcessError`."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def figures_of_ranks(ranks: int, module: str, *arguments: object, machines: int = 1) -> F64:
    """Run the command ``rank`` of a module on so many ranks; return the figures that the first prints as JSON.

    Each of `machines` is a launcher with a share of the ranks, and takes the others to be elsewhere.
    """
    where = [f"--nnodes={machines}", f"--master-port={free_port()}", f"--nproc-per-node={ranks // machines}"]
    launcher, what = ["-m", "torch.distributed.run", *where], ["-m", module, "rank", *map(str, arguments)]
    commands = [[sys.executable, *launcher, f"--node-rank={number}", *what] for number in range(machines)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    printed = [run.communicate()[0] for run in runs]
    if any(run.returncode for run in runs):
        raise typer.Exit(1)
    return np.array(json.loads(printed[0].splitlines()[-1]))


def status(field: str, process: int | str = "self") -> int:
    """Return a size of a process as the kernel counts it (``VmRSS``, ``VmHWM``), in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


class Peak:
    """By how many bytes the own memory of this process, and its mapped pages of files, have risen at most.

    The kernel keeps a peak of both together only, so a thread looks at them every five milliseconds while inside.
    `cpu` are the CPU-seconds of the process meanwhile, those of the thread included.
    """

    def __init__(self) -> None:
        self._first, self.own, self.mapped, self.cpu = self._now(), 0, 0, 0.0
        self._is_over, self._thread = threading.Event(), threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self.cpu = -time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.cpu += time.process_time()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            own, mapped = (now - first for now, first in zip(self._now(), self._first, strict=True))
            self.own, self.mapped = max(self.own, own), max(self.mapped, mapped)

    def _now(self) -> tuple[int, int]:
        pages, files = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return (pages - files) * mmap.PAGESIZE, files * mmap.PAGESIZE


def restart_peak() -> int:
    """Let the peak of this process's memory (``VmHWM``) start again; return the memory of now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def cpu_of_call(call: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of this process in a call that is made so many times."""
    before = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - before


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a running process; Linux keeps them in nanoseconds, by thread."""
    found = [(task / "schedstat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split()[0]) for text in found) / 1e9


def zipf_ranks(items: int, events: int, exponent: float, rng: np.random.Generator) -> tuple[I64, F64]:
    """Return ranks (events,) drawn from a Zipf law, and the law (items,)."""
    law = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    law /= law.sum()
    return np.minimum(np.searchsorted(np.cumsum(law), rng.random(events)), items - 1).astype(np.int64), law


def unit(vectors: F32) -> F32:
    """Return vectors at length 1."""
    scaled: F32 = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def recall(found: I64, exact: I64) -> float:
    """Return the share of the exact best rows (n, k) that were found, (n, k)."""
    return float(np.mean([len(np.intersect1d(*pair)) / len(pair[1]) for pair in zip(found, exact, strict=True)]))


@contextmanager
def new_store(name: str, folder: Path | None = None) -> Iterator[Store]:
    """Yield an empty store in a folder of its own, which is removed afterwards."""
    path = tempfile.mkdtemp(prefix=f".weir-{name}-", dir=folder)
    try:
        yield Store(path)
    finally:
        shutil.rmtree(path)


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants, whichever thread started them."""
    found = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [pid, *(each for child in found for each in descendants(int(child)))]


@dataclass(frozen=True)
class Server:
    """A running ``weir serve``; `ready` and `spent`: seconds and CPU-seconds from its start until it was SERVING."""

    pid: int
    target: str
    metrics_port: int
    ready: float
    spent: float

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics that have no labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@contextmanager
def started(store: Store, *settings: str) -> Iterator[Server]:
    """Run ``weir serve`` on a store, with settings (``name=value``); yields once it is SERVING."""
    port, metrics_port, begin = free_port(), free_port(), time.monotonic()
    command = [sys.executable, "-m", "weir", "serve", "--store", store.url, "--port", str(port)]
    for setting in (f"serving.metrics_port={metrics_port}", *settings):
        command += ["--set", setting]
    with tempfile.TemporaryFile() as log, running(command, log) as process:
        while b"ready: gRPC on" not in (said := os.pread(log.fileno(), 1 << 20, 0)):
            if process.poll() is not None:
                raise RuntimeError(f"weir serve ended with status {process.returncode}: {said.decode()[-2000:]}")
            time.sleep(0.01)
        ready, spent = time.monotonic() - begin, cpu_seconds(process.pid)
        yield Server(process.pid, f"127.0.0.1:{port}", metrics_port, ready, spent)


@contextmanager
def served(store: Store, *settings: str) -> Iterator[Server]:
    """Run ``weir serve`` on a store of `benchmarks.states`, with settings; it answers correctly when this returns."""
    with started(store, *settings) as server:
        with RetrievalClient(server.target, config=load_settings().client) as client:
            hits = client.retrieve([by_history(["item-00000000"], K)]).hits[0]
        if len(set(hits.item_ids)) != K or hits.fallback:
            raise RuntimeError(f"{store.url}: asked for {K} items, got {len(hits.item_ids)}, fallback: {hits.fallback}")
        yield server


def items_of(store: Store) -> int:
    """Return how many items the current bundle of a store has."""
    return BundleLog(store).manifest(str(BundleLog(store).current())).items


def random_histories(items: int) -> I64:
    """Return item numbers, (requests, history)."""
    return np.random.default_rng(0).integers(0, items, (REQUESTS, HISTORY))


def requests_for(histories: I64) -> list[bytes]:
    """Return a serialised request for each history."""
    asks = [by_history([f"item-{item:08d}" for item in history], K) for history in histories.tolist()]
    return [pb.RetrieveRequest(queries=[query]).SerializeToString() for query in asks]


@contextmanager
def client_processes() -> Iterator[Executor]:
    """Start the clients' processes; all have finished their imports when this returns."""
    context = multiprocessing.get_context("spawn")
    all_started = context.Barrier(CLIENTS)
    with ProcessPoolExecutor(CLIENTS, context, all_started.wait) as clients:
        list(clients.map(abs, range(CLIENTS)))
        yield clients


class Calls(NamedTuple):
    """A gRPC method, serialised requests for it, the number in flight, and the connections of a client process."""

    method: str
    requests: list[bytes]
    in_flight: int
    connections: int = 1


class Load(NamedTuple):
    """Results of a load: seconds of each call, calls per second, the server's CPU, and queries per batch."""

    latencies: F64
    rate: float
    cpu_us: float
    cores: float
    batch: float


def loaded(server: Server, clients: Executor, calls: Calls, seconds: float) -> Load:
    """Keep calls in flight for so long."""
    used = min(CLIENTS, calls.in_flight)
    begin = time.monotonic() + WARM_UP
    share = calls._replace(in_flight=calls.in_flight // used)
    running = [clients.submit(_call, server.target, share, begin, begin + seconds) for _ in range(used)]
    time.sleep(max(0.0, begin - time.monotonic()))
    before, start = server.metrics(), time.monotonic()
    time.sleep(seconds)
    after, ended = server.metrics(), time.monotonic()
    latencies = np.concatenate([future.result() for future in running])
    rate = len(latencies) / seconds
    spent, batches, queries = (
        after[metric] - before[metric]
        for metric in ("process_cpu_seconds_total", "weir_batch_queries_count", "weir_batch_queries_sum")
    )
    cores = spent / (ended - start)
    return Load(latencies, rate, 1e6 * cores / rate, cores, queries / max(batches, 1))


def _call(target: str, calls: Calls, begin: float, end: float) -> F64:
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
