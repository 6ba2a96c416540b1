"""The server beside Chroma, from a package registry: CPU of a query at the same recall, and memory.

    python -m venv PEERS && PEERS/bin/pip install chromadb
    OMP_NUM_THREADS=1 python -m benchmarks.peers PEERS                            # 100,000 items; some minutes

Both hold the same vectors, which lie around topics, and are asked for the 100 best items of a vector, with 8 calls
under way. Chroma has an HNSW graph (16 links, built with 200), weir the index of its export. Both search as deep as it
takes for a recall of .95. The CPU is that of the server's processes. The last column is the time from the start of the
server, with all that is stored, to its first answer.
"""

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import faiss
import grpc
import numpy as np
import torch
import typer

from benchmarks.harness import (
    F32,
    I64,
    RETRIEVE,
    Calls,
    K,
    client_processes,
    command_line,
    cpu_seconds,
    head,
    loaded,
    recall,
    row,
    running,
    served,
    status,
)
from benchmarks.publishing import TOPICS, Stream
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.client import by_embedding
from weir.up.ports import free_port

app = command_line(__doc__)
CLIENT: Final = Path(__file__).with_name("peer_client.py")
CALLERS: Final = 8
DEPTHS: Final = (100, 150, 200, 300, 450, 700, 1000)
LEAST: Final = 0.95
QUERIES: Final = 1000
JUDGED: Final = 100
"""Queries by which recall is judged."""
COLUMNS: Final = (
    "server | index | recall@100 | queries/s | CPU us/query | queries per CPU-second | resident MiB | first answer, s"
)


@app.command(help=__doc__)
def main(
    peers: Annotated[Path, typer.Argument(help="environment with the packages of Chroma", exists=True)],
    items: Annotated[int, typer.Option(help="items")] = 100_000,
    seconds: Annotated[float, typer.Option(help="of every measurement")] = 10.0,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weir-peers-") as name:
        folder = Path(name)
        stream = Stream.of(Store(str(folder / "store")), items)
        manifest = stream.export(np.arange(TOPICS))[0]
        queries = stream.world.around(stream.world.draw.integers(0, TOPICS, QUERIES))
        vectors = stream.state.embeddings.weight[stream.state.live].numpy()
        np.save(folder / "vectors.npy", vectors)
        np.save(folder / "queries.npy", queries)
        best = faiss.knn(queries[:JUDGED], vectors, K, metric=faiss.METRIC_INNER_PRODUCT)[1]
        head(*COLUMNS.split(" | "))
        own = int(manifest.index.parameters.get("nprobe", 1))
        searched, *rest = weir(stream.store, own, queries, best, seconds)
        row("weir", f"{manifest.index.type}, {searched}", *rest)
        peer = Peer(peers.resolve() / "bin", folder)
        peer.fill()
        row("chroma", *peer.measured(best, seconds))


def weir(store: Store, own: int, queries: F32, best: I64, seconds: float) -> Sequence[object]:
    """Return the cells of weir's row behind its index, at the first number of lists that finds enough."""
    with ExitStack() as stack:
        clients, started = stack.enter_context(client_processes()), time.monotonic()
        server = stack.enter_context(served(store))
        first = time.monotonic() - started
        channel = stack.enter_context(grpc.insecure_channel(server.target))
        method: grpc.UnaryUnaryMultiCallable[bytes, pb.RetrieveResponse] = channel.unary_unary(
            RETRIEVE, response_deserializer=pb.RetrieveResponse.FromString
        )
        for lists in (max(1, own * eighths // 8) for eighths in (1, 2, 4, 8, 16, 32, 64)):
            requests = [request(query, lists) for query in queries]
            ids = [method(each).hits[0].item_ids for each in requests[:JUDGED]]
            share = recall(np.array([[int(each.removeprefix("item-")) for each in found] for found in ids]), best)
            if share >= LEAST:
                load = loaded(server, clients, Calls(RETRIEVE, requests, CALLERS), seconds)
                memory = status("VmRSS", server.pid)
                return f"nprobe {lists}", *cells(share, load.rate, load.cpu_us, memory, first)
    raise RuntimeError(f"weir does not reach a recall of {LEAST}")


def request(query: F32, lists: int) -> bytes:
    """Return a request for the best items of a vector, in so many lists."""
    params = pb.SearchParams(nprobe=lists)
    asked = pb.RetrieveRequest(queries=[by_embedding(query.tolist(), K)], params=params)
    return bytes(asked.SerializeToString())


def cells(share: float, rate: float, cpu: float, memory: int, first: float) -> Sequence[object]:
    """Return the cells behind the index."""
    return f"{share:.3f}", f"{rate:.0f}", f"{cpu:.0f}", f"{1e6 / cpu:.0f}", f"{memory / 2**20:.0f}", f"{first:.1f}"


@dataclass(frozen=True)
class Peer:
    """Chroma's server: the folder of its programs, and where its data are."""

    programs: Path
    folder: Path

    def fill(self) -> None:
        """Store and index the vectors."""
        with self.listening() as (address, _):
            subprocess.run([*self._client(address), "fill"], check=True)

    def measured(self, best: I64, seconds: float) -> Sequence[object]:
        """Return the cells of the row, at the first depth that finds enough."""
        for depth in DEPTHS:
            with self.listening() as (address, _):
                subprocess.run([*self._client(address), "tune", str(depth)], check=True)
            found = self.asked(best, seconds)
            if found is not None:
                return f"HNSW16, ef {depth}", *found
        raise RuntimeError(f"Chroma does not reach a recall of {LEAST}")

    def asked(self, best: I64, seconds: float) -> Sequence[object] | None:
        """Start the server and ask it; return the cells behind the index, None where it does not find enough."""
        started = time.monotonic()
        with self.listening() as (address, server):
            command = [*self._client(address), "ask", str(CALLERS), str(seconds)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
                told(client)
                first = time.monotonic() - started
                share = recall(np.array(told(client)["found"], np.int64), best)
                if share < LEAST:
                    client.kill()
                    return None
                before = cpu_seconds(server)
                answered = told(client, go=True)["answered"]
                each = 1e6 * (cpu_seconds(server) - before) / answered
                return cells(share, answered / seconds, each, status("VmRSS", server), first)

    @contextmanager
    def listening(self) -> Iterator[tuple[str, int]]:
        """Run the server; yields its address and its process once it listens."""
        port = free_port()
        where = ["--path", str(self.folder / "chroma"), "--host", "127.0.0.1", "--port", str(port)]
        with running([str(self.programs / "chroma"), "run", *where], subprocess.DEVNULL) as process:
            wait_for(port)
            yield f"127.0.0.1:{port}", process.pid

    def _client(self, address: str) -> list[str]:
        return [str(self.programs / "python"), str(CLIENT), address, str(self.folder)]


def told(client: "subprocess.Popen[str]", *, go: bool = False) -> dict[str, Any]:
    """Return the next line of a client; `go`: tell it first to go on."""
    if go and client.stdin is not None:
        client.stdin.write("go\n")
        client.stdin.flush()
    line: dict[str, Any] = json.loads(client.stdout.readline() if client.stdout else "{}")
    return line


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")


if __name__ == "__main__":
    app()
