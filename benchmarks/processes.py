"""Several processes on one port (`serving.processes`), beside one process, and beside as many servers.

    python -m benchmarks.serving prepare FOLDER --items 1000000     # stores with a bundle each
    python -m benchmarks.processes FOLDER                           # CPU per query, and memory

It starts ``weir serve`` with one process and with several, and asks both in turn as `benchmarks.serving` does: with 64
calls under way for each process, by eight connections a client process. Printed is the median of the rounds. Then it
starts the server of several processes alone, and as many servers with one each, asks them for a while, and prints the
proportional set size (PSS, ``/proc/PID/smaps_rollup``) of all processes of each: what they share counts once. Last, it
prints the CPU of sharing a version: the first, and a next one, of which only the index is another.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from benchmarks.harness import command_line, head, row
from benchmarks.serving import (
    RETRIEVE,
    Calls,
    Folder,
    Load,
    Server,
    client_processes,
    loaded,
    random_histories,
    requests_for,
    served,
)
from weir.contracts import BundleLog, Store
from weir.serving.loading import load_bundle
from weir.serving.processes.arrays import MappedArrays, SharedArrays
from weir.serving.processes.version import Models, SharedVersion

app = command_line(__doc__)
CALLS: Final = 64
CONNECTIONS: Final = 8
Processes = Annotated[int, typer.Option(help="processes of the server")]


@app.command()
def load(
    folder: Folder,
    processes: Processes = 2,
    rounds: int = 5,
    seconds: Annotated[float, typer.Option(help="of every measurement")] = 4.0,
    only: str = "*",
) -> None:
    """Print two tables for each store."""
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            print(f"\n{path.name}\n")
            store = Store(str(path))
            show_load(store, clients, (1, processes), rounds, seconds)
            print(flush=True)
            show_memory(store, clients, processes, seconds)
            show_sharing(BundleLog(store))


def show_sharing(log: BundleLog) -> None:
    """Print the CPU of writing a version to memory, and of opening it."""
    bundle, arrays, reader = load_bundle(log, str(log.current()), places=True), SharedArrays(), MappedArrays()
    models = Models.read(log, bundle.manifest)
    for name in ("the first version", "a next one"):
        started = time.process_time()
        package = arrays.package(SharedVersion.of(bundle, models, arrays))
        written = time.process_time()
        reader.open(package).opened(1)
        opened = time.process_time()
        bundle = arrays.mapped.open(package).kept(bundle)
        print(f"{name}: written in {written - started:.3f} CPU-seconds, opened in {opened - written:.3f}", flush=True)


def show_load(store: Store, clients: Executor, counts: Sequence[int], rounds: int, seconds: float) -> None:
    """Print a row for each number of processes."""
    found: dict[int, list[Load]] = {count: [] for count in counts}
    with ExitStack() as stack:
        servers = {count: stack.enter_context(started(store, count)) for count in counts}
        for _ in range(rounds):
            for count, server in servers.items():
                found[count].append(loaded(server, clients, calls(store, count), seconds))
    head("processes", "queries/s", "cores", "batch", "CPU us/query", "ratio")
    one = np.median([load.cpu_us for load in found[counts[0]]])
    for count, loads in found.items():
        rate, cores, batch, cpu = np.median([(one.rate, one.cores, one.batch, one.cpu_us) for one in loads], axis=0)
        row(count, f"{rate:.0f}", f"{cores:.2f}", f"{batch:.1f}", f"{cpu:.0f}", f"{cpu / one:.3f}")


def show_memory(store: Store, clients: Executor, processes: int, seconds: float) -> None:
    """Print a row for the server of several processes, and one for as many servers."""
    head("memory", "PSS, MiB", "ratio")
    several = memory_of(store, clients, [processes], seconds)
    servers = memory_of(store, clients, [1] * processes, seconds)
    for name, size in ((f"{processes} servers", servers), (f"{processes} processes", several)):
        row(name, f"{size / 2**20:.0f}", f"{size / servers:.2f}")


def memory_of(store: Store, clients: Executor, counts: Sequence[int], seconds: float) -> float:
    """Return the memory of servers with so many processes each, in bytes, after they have been asked for a while."""
    with ExitStack() as stack:
        servers = [stack.enter_context(started(store, count)) for count in counts]
        for server, count in zip(servers, counts, strict=True):
            loaded(server, clients, calls(store, count), seconds)
        return sum(pss(pid) for server in servers for pid in descendants(server.pid))


def calls(store: Store, processes: int) -> Calls:
    """Return what a server with so many processes is asked."""
    items = BundleLog(store).manifest(str(BundleLog(store).current())).items
    return Calls(RETRIEVE, requests_for(random_histories(items)), CALLS * processes, CONNECTIONS)


def started(store: Store, processes: int) -> AbstractContextManager[Server]:
    """Start a server: however the kernel spreads connections over its processes, no call is cancelled unread."""
    return served(store, f"serving.processes={processes}", f"serving.queue_calls={CALLS * processes}")


def descendants(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in found for each in descendants(int(child)))]


def pss(pid: int) -> float:
    """Return the proportional set size of a process, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    app()
