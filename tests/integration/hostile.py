"""Hostile clients, each in a process of its own, and good calls measured beside them.

    python -m tests.integration.hostile --seconds 10

starts a server over 20,000 items with tags and prints the latency of good calls without and with each attack.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from contracts import Store
from serving.client import RetrievalClient, by_history
from serving.following import CatalogueFiles
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.retrieval.v1 import retrieval_pb2 as pb

METHOD = "/weir.retrieval.v1.RetrievalService/Retrieve"
GOOD = [by_history(["item-1", "item-2"], 10)]

ITEMS = 20_000
TAGS = 2000

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(target: str) -> bytes:
    """The header block of a call, as HPACK literals that are not indexed."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": target,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def _connected(target: str) -> socket.socket:
    host, _, port = target.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _speaking(target: str) -> socket.socket:
    """A connection that has said that it speaks HTTP/2."""
    connection = _connected(target)
    connection.sendall(_PREFACE + frame(_SETTINGS, 0, 0))
    return connection


def idle(target: str, until: float, count: int = 2000, *, speaking: bool = True) -> None:
    """Hold `count` connections open that never call, and open those again that are closed."""
    held: list[socket.socket] = []
    while time.time() < until:
        with contextlib.suppress(OSError):
            while len(held) < count and time.time() < until:
                held.append(_speaking(target) if speaking else _connected(target))
        time.sleep(0.2)
        held = [connection for connection in held if _open(connection)]


def _open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        while data := connection.recv(65536):
            del data
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


def idle_tcp(target: str, until: float) -> None:
    """Connections that say nothing at all."""
    idle(target, until, speaking=False)


def _flood(target: str, until: float, frames: Callable[[int], bytes]) -> None:
    """Send frames as fast as the server reads them, on a new connection whenever one is closed."""
    while time.time() < until:
        with contextlib.suppress(OSError), _speaking(target) as connection:
            reader = threading.Thread(target=_drain, args=(connection,), daemon=True)
            reader.start()
            for number in itertools.count():
                connection.sendall(b"".join(frames(2 * each + 1) for each in range(50 * number, 50 * number + 50)))
                if time.time() > until:
                    return


def _drain(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def rapid_reset(target: str, until: float) -> None:
    """Begin calls and take them back at once (CVE-2023-44487)."""
    block = headers(target)
    message = pb.RetrieveRequest(queries=GOOD).SerializeToString()
    body = b"\x00" + struct.pack(">I", len(message)) + message

    def call(stream: int) -> bytes:
        return (
            frame(_HEADERS, _END_HEADERS, stream, block)
            + frame(_DATA, _END_STREAM, stream, body)
            + frame(_RST_STREAM, 0, stream, struct.pack(">I", 8))
        )

    _flood(target, until, call)


def pings(target: str, until: float) -> None:
    """Send pings, which have to be answered."""
    _flood(target, until, lambda stream: frame(_PING, 0, 0, struct.pack(">Q", stream)))


def _calls(target: str, until: float, request: bytes, under_way: int = 4) -> None:
    """Send the same bytes again and again, with so many calls under way."""
    with grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(METHOD)

        def loop() -> None:
            while time.time() < until:
                try:
                    call(request, timeout=30)
                except grpc.RpcError:
                    time.sleep(0.001)

        threads = [threading.Thread(target=loop) for _ in range(under_way)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def violations(target: str, until: float) -> None:
    """As many wrong ids as there may be, all of them empty."""
    query = pb.Query(history=pb.History(item_ids=[""] * 1000))
    _calls(target, until, pb.RetrieveRequest(queries=[query] * 256).SerializeToString())


def undecodable(target: str, until: float) -> None:
    """Bytes that are no message."""
    _calls(target, until, b"\xff" * 1000)


def many_fields(target: str, until: float) -> None:
    """Ten megabytes of empty queries."""
    _calls(target, until, b"\x0a\x00" * (5 << 20), under_way=2)


def expensive(target: str, until: float) -> None:
    """Large batches of exact searches for many items, as dear as a request may be."""
    query = by_history([f"item-{number}" for number in range(100)], 1000)
    request = pb.RetrieveRequest(queries=[query] * 256, params=pb.SearchParams(exact=True), exclude_seen=True)
    _calls(target, until, request.SerializeToString())


def filters(target: str, until: float) -> None:
    """Filters as large as they may be, none like another, each with a cap that most items run into."""
    rng = random.Random(0)
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(METHOD)
        while time.time() < until:
            some = [f"tag-{number}" for number in rng.sample(range(TAGS), 200)]
            request = pb.RetrieveRequest(
                queries=[by_history([f"item-{rng.randrange(ITEMS)}"], 100)] * 64,
                filter=pb.Filter(
                    any_tags=["half", *some[:99]],
                    none_tags=some[100:],
                    allowed_item_ids=[f"item-{number}" for number in rng.sample(range(ITEMS), 10_000)],
                ),
                diversity=pb.Diversity(max_per_tag=1),
            )
            with contextlib.suppress(grpc.RpcError):
                call(request.SerializeToString(), timeout=30)


def odd_request(rng: random.Random) -> bytes:
    """Return a request whose filter, availability and diversity are as odd as can be; one in eight is no message."""
    odd = ["", "half", "all", "tag-7", "\x00", "é" * 256, "x" * 512, "x" * 513, "🎷" * 200, "' OR 1=1 --", "../..", "|"]

    def some(values: list[str], most: int) -> list[str]:
        return rng.choices(values, k=rng.choice([0, 0, 1, 2, most]))

    request = pb.RetrieveRequest(
        queries=[by_history([f"item-{rng.randrange(ITEMS)}"], rng.choice([1, 10, 1000]))],
        filter=pb.Filter(
            any_tags=some(odd, rng.choice([99, 101])),
            all_tags=some(odd, 20),
            none_tags=some(odd, 20),
            allowed_item_ids=some([*odd, *(f"item-{number}" for number in range(100))], rng.choice([50, 10_001])),
        ),
        params=pb.SearchParams(
            exact=rng.random() < 0.2,
            nprobe=rng.choice([0, 0, 1, 2**32 - 1]),
            score_threshold=rng.choice([None, -1.0, 0.5, 1e30, float("nan"), float("-inf")]),
        ),
        exclude_seen=rng.random() < 0.5,
    )
    if rng.random() < 0.5:
        prefix = rng.choice(odd)
        request.diversity.CopyFrom(pb.Diversity(max_per_tag=rng.choice([0, 1, 2, 1000, 2**32 - 1]), tag_prefix=prefix))
    data = bytearray(request.SerializeToString())
    if rng.random() < 0.125:
        for _ in range(rng.choice([1, 5, 50])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def described(folder: Path) -> CatalogueFiles:
    """Write a catalogue of the items: a tag that all have, one that half of them have, and one of many."""
    rows = (
        {"item_id": f"item-{number}", "tags": ["all", f"tag-{number % TAGS}", *["half"][: number % 2]]}
        for number in range(ITEMS)
    )
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CatalogueFiles(str(folder / "items.jsonl"))


ATTACKS: dict[str, Callable[[str, float], None]] = {
    attack.__name__: attack
    for attack in (idle_tcp, idle, rapid_reset, pings, violations, undecodable, many_fields, expensive, filters)
}


@contextlib.contextmanager
def under(attack: str | None, target: str, seconds: float) -> Iterator[None]:
    """Attack from another process while inside, for `seconds` at most."""
    if attack is None:
        yield
        return
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=ATTACKS[attack], args=(target, time.time() + seconds), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True)
class Measured:
    """Good calls: how many were answered and how many failed, and their latency in milliseconds."""

    answered: int
    failed: int
    median: float
    p99: float
    worst: float


def good_calls(target: str, seconds: float, callers: int = 4, pause: float = 0.02) -> Measured:
    """Call in the pace of `callers` patient clients, each on the connection that it had before."""
    times: list[float] = []
    failed: list[Exception] = []
    until = time.monotonic() + seconds

    def caller(client: RetrievalClient) -> None:
        while time.monotonic() < until:
            start = time.monotonic()
            try:
                client.retrieve(GOOD)
            except Exception as error:  # noqa: BLE001 - counted, whatever it is
                failed.append(error)
            times.append(1000 * (time.monotonic() - start))
            time.sleep(pause)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RetrievalClient(target, timeout=20)) for _ in range(callers)]
        threads = [threading.Thread(target=caller, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    middle, late, worst = np.quantile(times, (0.5, 0.99, 1)).tolist()
    return Measured(len(times) - len(failed), len(failed), middle, late, worst)


def measured(server: ServerProcess, attack: str | None, seconds: float, warm: float = 2.0) -> Measured:
    """Measure good calls for `seconds`, once an attack has been under way for `warm` seconds."""
    with under(attack, server.target, seconds + warm + 60):
        time.sleep(warm)
        return good_calls(server.target, seconds)


def main() -> None:
    """Print a line per attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="good calls are measured for so long per attack")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    arguments: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        write_bundle(store, "v1", Catalogue.random(items=ITEMS, dimension=64), index="IVF64,Flat")
        with ServerProcess(store, described(Path(folder))) as server:
            server.serving("v1")
            print(f"{'attack':12} {'answered':>8} {'failed':>6} {'median':>8} {'p99':>8} {'worst':>8} ms   MiB")  # noqa: T201
            for attack in (None, *arguments.attacks, None):
                found = measured(server, attack, arguments.seconds)
                memory = server.metric("process_resident_memory_bytes") / 2**20
                print(  # noqa: T201
                    f"{attack or 'none':12} {found.answered:8} {found.failed:6} "
                    f"{found.median:8.1f} {found.p99:8.1f} {found.worst:8.1f}    {memory:5.0f}"
                )


if __name__ == "__main__":
    main()
