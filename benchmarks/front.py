"""A compiled front beside the server's own: CPU per query of the same bundle, searched by the same code.

    python -m benchmarks.serving prepare FOLDER --items 1000000     # stores with a bundle each
    python -m benchmarks.front load FOLDER                          # needs cargo; one line per store and concurrency

`native_front/` is a prototype in Rust (tonic, PyO3). HTTP/2, protobuf, checks, hashing, the bounded queue and the
answer's bytes are compiled; Python runs tower and search once for each batch, on flat arrays. It answers `Retrieve` of
histories and the health check, and nothing else: what the server counts and looks after besides, it does not.

Both servers have to answer the same requests alike. Then each is asked as `benchmarks.serving` does, beside empty
calls, and the tower and FAISS alone.
"""

import gc
import importlib.machinery
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import faiss
import grpc
import numpy as np
import numpy.typing as npt
import typer
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, start_http_server

from benchmarks.harness import command_line, head, row
from benchmarks.serving import (
    CHECK,
    EMPTY,
    RETRIEVE,
    Calls,
    Folder,
    Server,
    alone,
    client_processes,
    loaded,
    random_histories,
    requests_for,
    served,
)
from contracts import MAX_ID_BYTES, BundleLog, IndexRows, ItemKeys, Store
from contracts.item_rows import FIRST_ITEM_ROW
from serving.bundle import LoadedBundle
from serving.config import ServingConfig
from serving.loading import load_bundle
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.up.ports import free_port

app = command_line(__doc__)
CRATE: Final = Path(__file__).parent / "native_front"
BUILT: Final = Path("build") / "native_front"
COMPARED: Final = 20
"""Requests whose answers have to be alike."""

COLUMNS: Final = (
    "items | index | calls | empty call, us | compiled empty call, us | tower, us | FAISS, us | CPU us/query | "
    "compiled: CPU us/query | CPU / (empty + tower + FAISS) | compiled: the same | CPU / compiled | batch | "
    "compiled batch"
)


@app.command()
def load(
    folder: Folder, seconds: Annotated[float, typer.Option(help="of every measurement")] = 4.0, only: str = "*"
) -> None:
    """Build the front, and print the table."""
    library = built()
    head(*COLUMNS.split(" | "))
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            store = Store(str(path))
            bundle = load_bundle(BundleLog(store), str(BundleLog(store).current()))
            with served(store) as plain, compiled(store, library) as native:
                servers = (plain, native)
                compare(servers, requests_for(random_histories(bundle.items))[:COMPARED])
                for calls in (1, 8, 64):
                    row(*measured(bundle, servers, clients, calls, seconds))


def built() -> Path:
    """Compile the front; return the library."""
    command = ["cargo", "build", "--release", "--locked", "--target-dir", str(BUILT.resolve())]
    subprocess.run(command, cwd=CRATE, check=True)
    return BUILT / "release" / "libweir_front.so"


@contextmanager
def compiled(store: Store, library: Path) -> Iterator[Server]:
    """Run the compiled front on a store; it answers when this returns."""
    port, metrics_port = free_port(), free_port()
    arguments = [store.url, str(library), str(port), str(metrics_port)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.front", "serve", *arguments])
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
        yield Server(process.pid, f"127.0.0.1:{port}", metrics_port)
    finally:
        process.terminate()
        process.wait()


def compare(servers: Sequence[Server], requests: list[bytes]) -> None:
    """Raise `RuntimeError` where two servers answer differently."""
    for request in requests:
        answers = [asked(server, request) for server in servers]
        for answer in answers:
            answer.ClearField("timing")
            answer.ClearField("attribution_token")
        if answers[0] != answers[1]:
            raise RuntimeError(f"the two fronts answer differently: {answers[0]} and {answers[1]}")


def asked(server: Server, request: bytes) -> pb.RetrieveResponse:
    """Return the answer to a request."""
    with grpc.insecure_channel(server.target) as channel:
        method = channel.unary_unary(RETRIEVE, response_deserializer=pb.RetrieveResponse.FromString)
        answer: pb.RetrieveResponse = method(request, timeout=60)
        return answer


def measured(
    bundle: LoadedBundle, servers: Sequence[Server], clients: Executor, calls: int, seconds: float
) -> tuple[object, ...]:
    """Return the cells of one row."""
    histories = random_histories(bundle.items)
    requests = requests_for(histories)
    found, empty = (
        [loaded(server, clients, Calls(method, sent, calls), seconds) for server in servers]
        for method, sent in ((RETRIEVE, requests), (CHECK, [EMPTY]))
    )
    batch = max(1, round(found[0].batch))
    tower, search = alone(bundle, bundle.item_rows.keys[histories], batch, seconds / 2)
    least = empty[0].cpu_us + tower + search
    return (
        *(bundle.items, bundle.manifest.index.type, calls),
        *(f"{us:.0f}" for us in (empty[0].cpu_us, empty[1].cpu_us, tower, search, found[0].cpu_us, found[1].cpu_us)),
        *(f"{each.cpu_us / least:.2f}" for each in found),
        f"{found[0].cpu_us / found[1].cpu_us:.2f}",
        *(f"{each.batch:.1f}" for each in found),
    )


@app.command(hidden=True)
def serve(url: str, library: Path, port: int, metrics_port: int) -> None:
    """Answer from the promoted bundle of a store, until SIGTERM."""
    config, registry = ServingConfig(), CollectorRegistry()
    ProcessCollector(registry=registry)
    sizes = Histogram("weir_batch_queries", "Queries answered together.", registry=registry)
    log = BundleLog(Store(url))
    bundle, module = load_bundle(log, str(log.current())), library_module(library)
    start_http_server(metrics_port, "127.0.0.1", registry)
    limits = config.limits
    front = module.Front(
        port, config.queue_queries, limits.max_queries, limits.max_k, limits.max_history_item_ids, MAX_ID_BYTES
    )
    signal.signal(signal.SIGTERM, lambda *_: front.close())
    faiss.omp_set_num_threads(config.threads)
    gc.collect()
    gc.freeze()
    version = version_of(module, bundle)
    while (batch := front.take(config.max_batch_queries)) is not None:
        sizes.observe(answer(bundle, version, batch))


def library_module(library: Path) -> Any:
    """Import a compiled module from where it was built."""
    loader = importlib.machinery.ExtensionFileLoader("weir_front", str(library))
    spec = importlib.util.spec_from_file_location("weir_front", library, loader=loader)
    if spec is None:
        raise ImportError(f"{library} is no compiled module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def version_of(module: Any, bundle: LoadedBundle) -> Any:
    """Return what the front writes into answers: the ids as bytes, and the bundle's name."""
    spelled = [raw.encode() for raw in bundle.ids[np.arange(len(bundle.rows))].tolist()]
    ends = np.cumsum([len(raw) for raw in spelled]).astype(np.uint64)
    return module.Version(bundle.version, b"".join(spelled), ends, bundle.items)


def answer(bundle: LoadedBundle, version: Any, batch: Any) -> int:
    """Answer a batch; return how many queries it had."""
    started = time.monotonic()
    keys, lengths, wanted = batch.wanted()
    rows = bundle.rows_of(ItemKeys(keys))
    inputs, mask = tower_inputs(rows, lengths, bundle.manifest.history_length)
    vectors = bundle.normalised(bundle.tower(bundle.embeddings[inputs], mask))
    planned = time.monotonic()
    scores, found = bundle.index.search(vectors, int(wanted.max()))
    searched = time.monotonic()
    batch.answer(version, found, scores, rows >= 0, planned - started, searched - planned)
    return len(lengths)


def tower_inputs(
    rows: IndexRows, lengths: npt.NDArray[np.int64], newest: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return what `contracts.item_rows.tower_rows` does, (n, newest) each, of histories one after the other.

    They are given by the index rows of their items, -1 for unknown ones, and by their `lengths` (n,).
    """
    query = np.repeat(np.arange(len(lengths)), lengths)
    known = rows >= 0
    before = np.concatenate([[0], np.cumsum(known)])
    after = before[np.cumsum(lengths)][query] - before[1:]
    read = known & (after < newest)
    inputs = np.zeros((len(lengths), newest), np.int64)
    inputs[query[read], newest - 1 - after[read]] = rows[read] + FIRST_ITEM_ROW
    return inputs, inputs != 0


if __name__ == "__main__":
    app()
