"""The compiled front beside Python's: CPU per query of the same store.

    make native                                                     # needs Rust
    python -m benchmarks.serving prepare FOLDER --items 1000000     # stores with a bundle each
    python -m benchmarks.front FOLDER                               # one line per store and concurrency

Two servers of each store, with `serving.front` = python and native, have to answer the same requests alike. Then each
is asked as `benchmarks.serving` does, beside empty calls (of Python's server), and the tower and FAISS alone.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import grpc
import typer

from benchmarks.harness import command_line, head, row
from benchmarks.serving import (
    CHECK,
    EMPTY,
    RETRIEVE,
    Calls,
    Folder,
    Load,
    Server,
    alone,
    client_processes,
    loaded,
    random_histories,
    requests_for,
    served,
)
from contracts import BundleLog, Store
from serving.loading import load_bundle
from weir.retrieval.v1 import retrieval_pb2 as pb

app = command_line(__doc__)
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
                requests = [*map(without_seen, requests_for(histories))] if exclude_seen else requests_for(histories)
                compare(servers, requests[:COMPARED])
                for calls in (1, 8, 64):
                    asked = [loaded(server, clients, Calls(RETRIEVE, requests, calls), seconds) for server in servers]
                    empty = loaded(servers[0], clients, Calls(CHECK, [EMPTY], calls), seconds)
                    batch = max(1, round(asked[0].batch))
                    without = alone(bundle, bundle.item_rows.keys[histories], batch, seconds / 2)
                    row(bundle.items, bundle.manifest.index.type, calls, *cells(asked, empty.cpu_us, *without))


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
        method = channel.unary_unary(RETRIEVE, response_deserializer=pb.RetrieveResponse.FromString)
        answer: pb.RetrieveResponse = method(request, timeout=60)
        return answer


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
