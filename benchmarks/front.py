"""The compiled front beside Python's: CPU per query of the same store.

    make native                                                     # needs Rust
    python -m benchmarks.serving prepare FOLDER --items 1000000     # stores with a bundle each
    python -m benchmarks.front FOLDER                               # one line per store and concurrency

Two servers of each store, with `serving.front` = python and native, have to answer the same requests alike. Then each
is asked as `benchmarks.serving` does, beside empty calls (of Python's server), and the tower and FAISS alone.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import grpc
import numpy as np
import numpy.typing as npt
import typer

from benchmarks.harness import command_line, head, row
from benchmarks.serving import (
    CHECK,
    EMPTY,
    RETRIEVE,
    Calls,
    Folder,
    K,
    Load,
    Server,
    alone,
    client_processes,
    loaded,
    random_histories,
    requests_for,
    served,
)
from weir.contracts import BundleLog, Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundle import LoadedBundle
from weir.serving.client import by_embedding, by_item
from weir.serving.loading import load_bundle

app = command_line(__doc__)
By = Literal["history", "embedding", "item"]
COMPARED: Final = 20
"""Requests whose answers have to be alike."""

COLUMNS: Final = (
    "items | index | calls | empty call, us | tower, us | FAISS, us | python: CPU us/query | native: CPU us/query | "
    "python: CPU / (empty + tower + FAISS) | native: the same | python / native | python: batch | native: batch"
)


@app.command()
def load(
    folder: Folder,
    seconds: Annotated[float, typer.Option(help="of every measurement")] = 4.0,
    only: str = "*",
    *,
    exclude_seen: Annotated[bool, typer.Option(help="leave the items of the history out")] = False,
    by: Annotated[By, typer.Option(help="what a query is made from; only a history needs the tower")] = "history",
) -> None:
    """Print the table."""
    head(*COLUMNS.split(" | "))
    with client_processes() as clients:
        for path in sorted(folder.glob(only)):
            store = Store(str(path))
            bundle = load_bundle(BundleLog(store), str(BundleLog(store).current()))
            with served(store) as plain, served(store, "serving.front=native") as native:
                servers = (plain, native)
                histories = random_histories(bundle.items)
                requests = requests_for(histories) if by == "history" else beside(bundle, histories[:, -1], by)
                requests = [*map(without_seen, requests)] if exclude_seen else requests
                compare(servers, requests[:COMPARED])
                for calls in (1, 8, 64):
                    asked = [loaded(server, clients, Calls(RETRIEVE, requests, calls), seconds) for server in servers]
                    empty = loaded(servers[0], clients, Calls(CHECK, [EMPTY], calls), seconds)
                    batch = max(1, round(asked[0].batch))
                    tower, search = alone(bundle, bundle.item_rows.keys[histories], batch, seconds / 2)
                    least = (empty.cpu_us, tower if by == "history" else 0.0, search)
                    row(bundle.items, bundle.manifest.index.type, calls, *cells(asked, *least))


def beside(bundle: LoadedBundle, rows: npt.NDArray[np.int64], by: By) -> list[bytes]:
    """Return requests for what is like the items of some rows (n,), by their vectors or by their ids."""
    if by == "embedding":
        queries = [by_embedding(vector, K) for vector in bundle.exact.vectors[rows]]
    else:
        queries = [by_item(name, K) for name in bundle.ids[rows].tolist()]
    return [pb.RetrieveRequest(queries=[query]).SerializeToString() for query in queries]


def without_seen(request: bytes) -> bytes:
    """Return a request that leaves out the items of its histories."""
    found = pb.RetrieveRequest.FromString(request)
    found.exclude_seen = True
    return found.SerializeToString()


def compare(servers: Sequence[Server], requests: list[bytes]) -> None:
    """Raise `RuntimeError` where two servers answer differently."""
    for request in requests:
        answers = [answer_of(server, request) for server in servers]
        for answer in answers:
            answer.ClearField("timing")
            answer.ClearField("attribution_token")
        if answers[0] != answers[1]:
            raise RuntimeError(f"the two fronts answer differently: {answers[0]} and {answers[1]}")


def answer_of(server: Server, request: bytes) -> pb.RetrieveResponse:
    """Return the answer to a request."""
    with grpc.insecure_channel(server.target) as channel:
        method: grpc.UnaryUnaryMultiCallable[bytes, pb.RetrieveResponse] = channel.unary_unary(
            RETRIEVE, response_deserializer=pb.RetrieveResponse.FromString
        )
        return method(request, timeout=60)


def cells(asked: Sequence[Load], empty: float, tower: float, search: float) -> list[str]:
    """Return the cells of a row behind the first three."""
    least = empty + tower + search
    return [
        *(f"{us:.0f}" for us in (empty, tower, search, *(each.cpu_us for each in asked))),
        *(f"{each.cpu_us / least:.2f}" for each in asked),
        f"{asked[0].cpu_us / asked[1].cpu_us:.2f}",
        *(f"{each.batch:.1f}" for each in asked),
    ]


if __name__ == "__main__":
    app()
