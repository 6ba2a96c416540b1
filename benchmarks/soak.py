"""A server for half an hour with another version every second: calls that fail, and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.soak                              # 30 minutes, 100,000 items
    OMP_NUM_THREADS=1 python -m benchmarks.soak --minutes 5 --front native

Items move and the trainer's own export publishes them: deltas, and now and then a complete bundle. Every tenth second
the server goes back to the version before, which it has to read from the start, and then to the newest again. Callers
ask all the time, with a vector, a history or an unknown user, and do not repeat a call. A call fails that gets an
error, fewer items than wanted, or the same item twice. The server's memory is looked at every second.
"""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import grpc
import numpy as np
import torch
import typer

from benchmarks.deltas import Stream
from benchmarks.harness import command_line, head, row, status
from benchmarks.serving import Server, served
from benchmarks.states import item_id
from benchmarks.topics import TOPICS
from weir.contracts import BundleLog, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.client import by_embedding, by_history, by_user

app = command_line(__doc__)
K: Final = 100
CALLERS: Final = 4
PAUSE: Final = 0.02
"""Seconds between the calls of a caller."""
BACK: Final = 10
PARTS: Final = 6
"""Parts of the time, of which each has its line."""


@dataclass
class Callers:
    """Ask until `over`; what went wrong is counted by what it was."""

    server: Server
    items: int
    dimension: int
    over: threading.Event = field(default_factory=threading.Event)
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask while inside."""
        threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def _ask(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        with grpc.insecure_channel(self.server.target, (("grpc.enable_retries", 0),)) as channel:
            method = retrieval_pb2_grpc.RetrievalServiceStub(channel).Retrieve
            while not self.over.wait(PAUSE):
                try:
                    answer = method(pb.RetrieveRequest(queries=[self._query(draw)]), timeout=30)
                except grpc.RpcError as error:
                    self.failures[f"{error.code().name}: {error.details()}"] += 1
                    continue
                distinct = len(set(answer.hits[0].item_ids))
                if distinct != K:
                    self.failures[f"{distinct} items of {K}"] += 1
                self.answered += 1
                self.versions.add(answer.bundle_version)

    def _query(self, draw: np.random.Generator) -> pb.Query:
        match draw.integers(3):
            case 0:
                return by_embedding(draw.standard_normal(self.dimension).tolist(), K)
            case 1:
                return by_history([item_id(item) for item in draw.integers(0, self.items, 20)], K)
            case _:
                return by_user("nobody", K)


def publish(stream: Stream, share: float) -> str:
    """Publish another version, and return its name."""
    stream.world.drift()
    stream.place(stream.world.draw.choice(stream.items, round(share * stream.items), replace=False))
    return stream.export(np.arange(TOPICS))[0].version


def go_back(log: BundleLog, before: str, newest: str) -> None:
    """Have the version before the newest served for half a second."""
    log.promote(before)
    time.sleep(0.5)
    log.promote(newest)


@app.command(help=__doc__)
def main(
    minutes: Annotated[float, typer.Option(help="how long")] = 30.0,
    items: Annotated[int, typer.Option(help="items of a version")] = 100_000,
    share: Annotated[float, typer.Option(help="of them that move from one to the next")] = 0.001,
    *,
    dimension: Annotated[int, typer.Option(help="of vectors")] = 64,
    front: Annotated[str, typer.Option(help="serving.front")] = "python",
    folder: Annotated[Path | None, typer.Option(help="where the store is written, and removed", exists=True)] = None,
) -> None:
    """Run, and print a line for each part of the time."""
    torch.set_num_threads(1)
    path = Path(tempfile.mkdtemp(prefix="weir-soak-", dir=folder))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, path)
        stream = Stream.of(Store(str(path)), items, dimension)
        stream.export(np.arange(TOPICS))
        server = stack.enter_context(served(stream.store, f"serving.front={front}", "serving.poll_seconds=0.1"))
        callers = Callers(server, items, dimension)
        with callers.asking():
            soak(stream, callers, 60 * minutes, share)
    print(f"\n{callers.answered:,} answers from {len(callers.versions):,} versions, {callers.failures.total()} failed")
    for failure, times in callers.failures.most_common(5):
        print(f"  {times} times {failure}")


def soak(stream: Stream, callers: Callers, seconds: float, share: float) -> None:
    """Publish a version a second, and print what each part of the time showed."""
    head("minutes", "versions", "answers", "failed", "resident MiB, median", "highest")
    begin, number, part = time.monotonic(), 0, 0
    resident: list[float] = []
    log, before, newest = BundleLog(stream.store), "", ""
    while (spent := time.monotonic() - begin) < seconds:
        if spent >= (part + 1) * seconds / PARTS:
            part += 1
            show(part * seconds / PARTS, number, callers, resident)
            resident.clear()
        number += 1
        if number % BACK:
            before, newest = newest, publish(stream, share)
        else:
            go_back(log, before, newest)
        resident.append(status("VmRSS", callers.server.pid) / 2**20)
        time.sleep(max(0.0, begin + number - time.monotonic()))
    show(seconds, number, callers, resident)


def show(seconds: float, versions: int, callers: Callers, resident: list[float]) -> None:
    """Print a line."""
    counts = versions, callers.answered, callers.failures.total()
    row(f"{seconds / 60:.1f}", *counts, f"{np.median(resident):.1f}", f"{max(resident):.1f}")


if __name__ == "__main__":
    app()
