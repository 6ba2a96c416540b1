"""Goodput of an overloaded server, and the cost of a refusal.

    python -m benchmarks.overload FOLDER        # stores of `python -m benchmarks.serving prepare FOLDER`

First, some calls are kept in flight (closed loop), which gives the capacity and the CPU of a query, q; then as many
empty calls. Then calls arrive by a Poisson process (open loop), a multiple of the capacity, each with a deadline, over
several connections, and are not repeated. *Goodput* counts answers before the deadline; *refused* are calls that the
server has taken and refused with RESOURCE_EXHAUSTED, *cancelled* calls that it never took.

f, the cost of a refusal, is the CPU of the server beyond q for each answer, divided by the calls that were not
answered. The most goodput at r times the capacity is capacity / (1 + (r - 1) f / q): `possible` is that, with the CPU
that the server got while it was measured and the least f of all loads.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import grpc.aio
import numpy as np
import numpy.typing as npt
import typer
import uvloop

from benchmarks.harness import (
    CHECK,
    CLIENTS,
    EMPTY,
    RETRIEVE,
    Calls,
    Load,
    Server,
    channel_to,
    client_processes,
    command_line,
    cpu_seconds,
    head,
    items_of,
    loaded,
    random_histories,
    requests_for,
    row,
    served,
    status,
)
from weir.contracts import Store

app = command_line(__doc__)
Factors = Annotated[list[float], typer.Option("--load", help="by the capacity; may be repeated")]

CONNECTIONS: Final = 8
"""Of each client process: one connection alone bounds the calls that are under way."""
BATCHES: Final = ("weir_batch_queries_count", "weir_batch_queries_sum")
TICK: Final = 0.001
WARM_UP: Final = 3.0
COLUMNS: Final = (
    "load | calls/s | seconds | cores | batch | answered/s | late/s | refused/s | cancelled/s | p50 ms | p99 ms | "
    "f, us | f / empty | possible/s | goodput / possible | MiB"
)


class Flood(NamedTuple):
    """Calls per second, each with a deadline in seconds."""

    requests: list[bytes]
    rate: float
    deadline: float


class Ends(NamedTuple):
    """How calls ended: seconds of those that were answered, and the number of each code."""

    latencies: npt.NDArray[np.float64]
    codes: Counter[str]


class Row(NamedTuple):
    """A load that was measured: its ends, and what the server used."""

    ends: Ends
    seconds: float
    cpu: float
    batch: float
    resident: float

    def refusal(self, query: float) -> float:
        """Return the CPU of a call that was not answered, in seconds."""
        answered = self.ends.codes["OK"]
        return max(0.0, self.cpu - answered * query) / max(1, self.ends.codes.total() - answered)


@app.command()
def overload(
    folder: Annotated[Path, typer.Argument(help="where the stores are")],
    load: Factors = [1.5, 3.0, 6.0],  # noqa: B006 - typer's way
    seconds: Annotated[float, typer.Option(help="of every load")] = 20.0,
    deadline: Annotated[float, typer.Option(help="of a call, seconds")] = 0.2,
    calls: Annotated[int, typer.Option(help="in flight for the capacity; at most `serving.queue_calls`")] = 64,
) -> None:
    """Print a table for each store."""
    with client_processes() as clients:
        for path in sorted(folder.iterdir()):
            store = Store(str(path))
            with served(store) as server:
                asks = requests_for(random_histories(items_of(store)))
                full = loaded(server, clients, Calls(RETRIEVE, asks, calls), seconds / 2)
                empty = loaded(server, clients, Calls(CHECK, [EMPTY], calls), seconds / 2)
                print(
                    f"{path.name}: {full.rate:.0f} queries/s on {full.cores:.2f} cores, q {full.cpu_us:.0f} us; an "
                    f"empty call {empty.cpu_us:.0f} us; deadline {deadline:g} s; load average {os.getloadavg()[0]:.1f}"
                )
                floods = [Flood(asks, factor * full.rate, deadline) for factor in load]
                rows = [measured(server, clients, flood, seconds) for flood in floods]
            report(rows, full, empty)


def measured(server: Server, clients: Executor, flood: Flood, seconds: float) -> Row:
    """Load the server for some seconds, and as long as it takes to adapt before."""
    begin = time.monotonic() + WARM_UP
    share = flood._replace(rate=flood.rate / CLIENTS)
    running = [clients.submit(call, server.target, share, (begin, begin + seconds), seed) for seed in range(CLIENTS)]
    time.sleep(max(0.0, begin - time.monotonic()))
    batched, before, started = server.metrics(), cpu_seconds(server.pid), time.monotonic()
    time.sleep(seconds)
    spent, took = cpu_seconds(server.pid) - before, time.monotonic() - started
    batches, in_them = (after - batched[name] for name, after in server.metrics().items() if name in BATCHES)
    found = [future.result() for future in running]
    codes = Counter[str]()
    for ends in found:
        codes += ends.codes
    latencies = np.concatenate([ends.latencies for ends in found])
    return Row(Ends(latencies, codes), took, spent, in_them / max(1, batches), status("VmRSS", server.pid) / 2**20)


def report(rows: list[Row], full: Load, empty: Load) -> None:
    """Print a line for each load."""
    head(*COLUMNS.split(" | "))
    query = full.cpu_us / 1e6
    least = min(row.refusal(query) for row in rows)
    for one in rows:
        codes, offered = one.ends.codes, one.ends.codes.total() / one.seconds
        capacity = one.cpu / one.seconds / query
        possible = capacity / (1 + max(0.0, offered / capacity - 1) * least / query)
        answered = codes["OK"] / one.seconds
        names = ("OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED")
        p50, p99 = 1e3 * np.quantile(one.ends.latencies, (0.5, 0.99)) if codes["OK"] else (np.nan, np.nan)
        cores = f"{one.cpu / one.seconds:.2f}"
        row(
            *(f"{offered / full.rate:.1f}", f"{offered:.0f}", f"{one.seconds:.0f}", cores, f"{one.batch:.1f}"),
            *(f"{codes[name] / one.seconds:.0f}" for name in names),
            *(f"{p50:.0f}", f"{p99:.0f}", f"{1e6 * one.refusal(query):.0f}"),
            f"{1e6 * one.refusal(query) / empty.cpu_us:.2f}",
            *(f"{possible:.0f}", f"{answered / possible:.2f}", f"{one.resident:.0f}"),
        )


def call(target: str, share: Flood, between: tuple[float, float], seed: int) -> Ends:
    """Be a client process: send calls as they are due, and return what became of those that were due between."""
    begin, end = between
    latencies: list[float] = []
    codes = Counter[str]()
    random = np.random.default_rng(seed)

    async def one(method: Callable[..., Any], request: bytes, due: float) -> None:
        try:
            await method(request, timeout=share.deadline)
            code = "OK"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        if begin <= due < end:
            codes[code] += 1
            if code == "OK":
                latencies.append(time.monotonic() - due)

    async def run() -> None:
        channels = [channel_to(target) for _ in range(CONNECTIONS)]
        methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
            channel.unary_unary(RETRIEVE) for channel in channels
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        running: set[asyncio.Task[None]] = set()
        number, due = seed * 37, time.monotonic()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()) // TICK * TICK)
            while due <= time.monotonic() + TICK:
                request = share.requests[number % len(share.requests)]
                task = asyncio.create_task(one(methods[number % CONNECTIONS], request, due))
                running.add(task)
                task.add_done_callback(running.discard)
                number, due = number + 1, due + random.exponential(1 / share.rate)
        await asyncio.gather(*running)
        await asyncio.gather(*(channel.close() for channel in channels))

    uvloop.run(run())
    return Ends(np.array(latencies), codes)


if __name__ == "__main__":
    app()
