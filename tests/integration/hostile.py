"""Hostile clients, each in a process of its own, and good calls measured beside them.

    python -m tests.integration.hostile --seconds 10
    python -m tests.integration.hostile --odd 10000         # requests with odd filters; both also with --tls

starts a server over 20,000 items with tags and prints the latency of good calls without and with each attack, or how
long each odd request waited for its status, beside good calls.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import random
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import jwt
import numpy as np

from tests.integration.odd_filters import ITEMS, described, large_request, odd_request
from tests.serving.authority import AUDIENCE, ISSUER, Authority, Issuer
from tests.serving.process import ServerProcess
from tests.serving.support import Catalogue, write_bundle
from weir.contracts import Store
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.access.channel import Channel
from weir.serving.access_config import ClientConfig
from weir.serving.client import RetrievalClient, by_history

METHOD = "/weir.retrieval.v1.RetrievalService/Retrieve"
GOOD = [by_history(["item-1", "item-2"], 10)]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS = 1, 4
_HEAD = 9
"""Bytes of a frame before its payload."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@dataclass(frozen=True)
class Aim:
    """Where a server listens, and how it is reached; an attacker has a token, if the server asks for one."""

    target: str
    client: ClientConfig = field(default_factory=ClientConfig)

    def connected(self) -> socket.socket:
        """Open a connection."""
        host, _, port = self.target.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def speaking(self) -> socket.socket:
        """Open a connection that has said that it speaks HTTP/2."""
        connection = self.connected()
        if self.client.tls:
            context = ssl.create_default_context(cafile=str(self.client.ca_file))
            context.set_alpn_protocols(["h2"])
            connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
        connection.sendall(_PREFACE + frame(_SETTINGS, 0, 0))
        return connection

    def channel(self, *, with_token: bool = True) -> Channel:
        """Open a channel for messages of any size."""
        client = self.client if with_token else self.client.model_copy(update={"token_file": None})
        return Channel(self.target, client, [("grpc.max_receive_message_length", -1)])


def headers(aim: Aim, more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """The header block of a call, as HPACK literals that are not indexed."""
    fields = {
        ":method": b"POST",
        ":scheme": b"https" if aim.client.tls else b"http",
        ":path": METHOD.encode(),
        ":authority": aim.target.encode(),
        "te": b"trailers",
        "content-type": b"application/grpc",
        **more,
    }
    return b"".join(
        b"\x00" + _length(len(name)) + name.encode() + _length(len(value)) + value for name, value in fields.items()
    )


def _length(size: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits (RFC 7541, 5.1)."""
    if size < 127:
        return bytes([size])
    found, left = [127], size - 127
    while left >= 128:
        found.append(left % 128 + 128)
        left //= 128
    return bytes([*found, left])


def call(block: bytes, stream: int, message: bytes) -> bytes:
    """The frames of a call with a header block."""
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return frame(_HEADERS, _END_HEADERS, stream, block) + frame(_DATA, _END_STREAM, stream, body)


def forgeries(aim: Aim, text: bytes) -> Iterator[bytes]:
    """Yield what a caller sends to have a text written into the server's log; it has said that it speaks HTTP/2."""
    asks = call(headers(aim), 1, b"")
    for code in range(14):
        goaway = frame(_GOAWAY, 0, 0, struct.pack(">II", 0, code) + text)
        yield goaway
        yield asks + goaway
    for kind in (_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING):
        yield frame(kind, _END_HEADERS, 1, text)
    for name in ("grpc-timeout", "grpc-encoding", "user-agent", "content-type", "x-request-id", ":path", "te"):
        yield call(headers(aim, {name: text}), 1, b"")
    yield text * 100


def has_ended(answer: bytes) -> bool:
    """Say whether an answer holds the end of a call's stream, or of the connection."""
    while len(answer) >= _HEAD:
        size, kind, flags = int.from_bytes(answer[:3]), answer[3], answer[4]
        ends = kind in {_HEADERS, _DATA} and flags & _END_STREAM
        if len(answer) >= _HEAD + size and (ends or kind in {_RST_STREAM, _GOAWAY}):
            return True
        answer = answer[_HEAD + size :]
    return False


def idle(aim: Aim, until: float, count: int = 2000, *, speaking: bool = True) -> None:
    """Hold `count` connections open that never call, and open those again that are closed."""
    held: list[socket.socket] = []
    while time.time() < until:
        with contextlib.suppress(OSError):
            while len(held) < count and time.time() < until:
                held.append(aim.speaking() if speaking else aim.connected())
        time.sleep(0.2)
        held = [connection for connection in held if _open(connection)]


def _open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        while data := connection.recv(65536):
            del data
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        pass
    connection.close()
    return False


def idle_tcp(aim: Aim, until: float) -> None:
    """Connections that say nothing at all."""
    idle(aim, until, speaking=False)


def _flood(aim: Aim, until: float, frames: Callable[[int], bytes]) -> None:
    """Send frames as fast as the server reads them, on a new connection whenever one is closed."""
    while time.time() < until:
        with contextlib.suppress(OSError), aim.speaking() as connection:
            for number in itertools.count():
                connection.settimeout(10)
                connection.sendall(b"".join(frames(2 * each + 1) for each in range(50 * number, 50 * number + 50)))
                # By the same thread: one TLS connection must not be read and written at once.
                if time.time() > until or not _open(connection):
                    break


def rapid_reset(aim: Aim, until: float) -> None:
    """Begin calls and take them back at once (CVE-2023-44487)."""
    block, message = headers(aim), pb.RetrieveRequest(queries=GOOD).SerializeToString()
    _flood(
        aim, until, lambda stream: call(block, stream, message) + frame(_RST_STREAM, 0, stream, struct.pack(">I", 8))
    )


def pings(aim: Aim, until: float) -> None:
    """Send pings, which have to be answered."""
    _flood(aim, until, lambda stream: frame(_PING, 0, 0, struct.pack(">Q", stream)))


def _calls(aim: Aim, until: float, request: bytes, under_way: int = 4) -> None:
    """Send the same bytes again and again, with so many calls under way."""
    with contextlib.closing(aim.channel()) as channel:
        method = channel.open().unary_unary(METHOD)

        def loop() -> None:
            while time.time() < until:
                try:
                    method(request, timeout=30)
                except grpc.RpcError:
                    time.sleep(0.001)

        threads = [threading.Thread(target=loop) for _ in range(under_way)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def violations(aim: Aim, until: float) -> None:
    """As many wrong ids as there may be, all of them empty."""
    query = pb.Query(history=pb.History(item_ids=[""] * 1000))
    _calls(aim, until, pb.RetrieveRequest(queries=[query] * 256).SerializeToString())


def undecodable(aim: Aim, until: float) -> None:
    """Bytes that are no message."""
    _calls(aim, until, b"\xff" * 1000)


def many_fields(aim: Aim, until: float) -> None:
    """Ten megabytes of empty queries."""
    _calls(aim, until, b"\x0a\x00" * (5 << 20), under_way=2)


def expensive(aim: Aim, until: float) -> None:
    """Large batches of exact searches for many items, as dear as a request may be."""
    query = by_history([f"item-{number}" for number in range(100)], 1000)
    request = pb.RetrieveRequest(queries=[query] * 256, params=pb.SearchParams(exact=True), exclude_seen=True)
    _calls(aim, until, request.SerializeToString())


def filters(aim: Aim, until: float) -> None:
    """Filters as large as they may be, none like another, each with a cap that most items run into."""
    rng = random.Random(0)
    with contextlib.closing(aim.channel()) as channel:
        method = channel.open().unary_unary(METHOD)
        while time.time() < until:
            with contextlib.suppress(grpc.RpcError):
                method(large_request(rng), timeout=30)


def forged_tokens(count: int, seed: int = 0) -> Iterator[str]:
    """Tokens that nobody has signed who may: another key by a known name, unheard-of keys, no signature, nonsense."""
    draw, forger = random.Random(seed), Issuer({"one": "EC", "unheard-of": "EC"})
    signed = [forger.token(kid, sub=f"user-{number}") for kid in forger.keys for number in range(20)]
    unsigned = [jwt.encode({"sub": "ann"}, None, "none", headers={"kid": kid}) for kid in ("one", "two")]
    letters = [chr(code) for code in range(33, 127)]
    for _ in range(count):
        head, body, seal = draw.choice(signed).split(".")
        cut = draw.randrange(1, len(body))
        yield draw.choice(
            (
                f"{head}.{body}.{seal}",
                f"{head}.{body[:cut]}.{seal}",
                f"{head}.{body}.",
                draw.choice(unsigned),
                "".join(draw.choices(letters, k=draw.randrange(1, 4000))),
            )
        )


def forged(aim: Aim, until: float) -> None:
    """Tokens of a forger, of which many cost the server a signature to be verified."""
    request, tokens = pb.RetrieveRequest(queries=GOOD).SerializeToString(), [*forged_tokens(1000)]
    with contextlib.closing(aim.channel(with_token=False)) as channel:
        method = channel.open().unary_unary(METHOD)
        endless = itertools.cycle(tokens)
        while time.time() < until:
            under_way = [
                method.future(request, metadata=[("authorization", f"Bearer {token}")])
                for token in itertools.islice(endless, 16)
            ]
            for each in under_way:
                with contextlib.suppress(grpc.RpcError):
                    each.result()


ATTACKS: dict[str, Callable[[Aim, float], None]] = {
    attack.__name__: attack
    for attack in (idle_tcp, idle, rapid_reset, pings, violations, undecodable, many_fields, expensive, filters, forged)
}


@contextlib.contextmanager
def under(attack: str | None, aim: Aim, seconds: float) -> Iterator[None]:
    """Attack from another process while inside, for `seconds` at most."""
    if attack is None:
        yield
        return
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=ATTACKS[attack], args=(aim, time.time() + seconds), daemon=True)
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


def good_calls(aim: Aim, seconds: float, callers: int = 4, pause: float = 0.02) -> Measured:
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
        clients = [stack.enter_context(RetrievalClient(aim.target, 20, aim.client)) for _ in range(callers)]
        threads = [threading.Thread(target=caller, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    middle, late, worst = np.quantile(times, (0.5, 0.99, 1)).tolist()
    return Measured(len(times) - len(failed), len(failed), middle, late, worst)


def measured(server: ServerProcess, attack: str | None, seconds: float, warm: float = 2.0) -> Measured:
    """Measure good calls for `seconds`, once an attack has been under way for `warm` seconds."""
    aim = Aim(server.target, server.client or ClientConfig())
    with under(attack, aim, seconds + warm + 60):
        time.sleep(warm)
        return good_calls(aim, seconds)


def odd_calls(aim: Aim, count: int, callers: int) -> tuple[Counter[str], list[float]]:
    """Send so many requests with odd filters, some at a time; return the codes, and the milliseconds of each call."""
    rng, times = random.Random(1), list[float]()
    # Made beside the calls they would hold up their clock.
    requests = [odd_request(rng) for _ in range(count)]

    def ask(data: bytes) -> str:
        start = time.monotonic()
        try:
            call(data, timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
        finally:
            times.append(1000 * (time.monotonic() - start))
        return "OK"

    with contextlib.closing(aim.channel()) as channel, ThreadPoolExecutor(callers) as pool:
        call = channel.open().unary_unary(METHOD)
        return Counter(pool.map(ask, requests)), times


@contextlib.contextmanager
def served(store: Store, folder: Path, *, secured: bool) -> Iterator[ServerProcess]:
    """Start a server for attacks; `secured` with TLS and tokens, whose files go to `folder`."""
    if not secured:
        with ServerProcess(store, described(folder)) as server:
            yield server
        return
    authority, issuer, token = Authority(folder), Issuer(), folder / "token"
    token.write_text(issuer.token())
    auth = {"jwks": issuer.publish(folder / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    client = ClientConfig(tls=True, ca_file=authority.file, token_file=token)
    with ServerProcess(store, described(folder), client=client, tls=authority.files("server"), auth=auth) as server:
        yield server


def show_odd(server: ServerProcess, count: int, callers: int) -> None:
    """Print how long odd requests and the good calls beside them took."""
    aim = Aim(server.target, server.client or ClientConfig())
    with ThreadPoolExecutor(1) as beside:
        good = beside.submit(good_calls, aim, count / 400, 1)
        codes, times = odd_calls(aim, count, callers)
    middle, late, worst = np.quantile(times, (0.5, 0.99, 1)).tolist()
    slow = sum(each > 100 for each in times)
    print(f"odd: {dict(codes)}; median {middle:.1f}, p99 {late:.1f}, worst {worst:.1f} ms; {slow} above 100 ms")  # noqa: T201
    found = good.result()
    print(  # noqa: T201
        f"good calls beside: {found.answered} answered, {found.failed} failed; median {found.median:.1f}, "
        f"p99 {found.p99:.1f}, worst {found.worst:.1f} ms"
    )


def main() -> None:
    """Print a line per attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="good calls are measured for so long per attack")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--odd", type=int, metavar="N", help="send N requests with odd filters instead of attacks")
    parser.add_argument("--callers", type=int, default=2, help="odd requests at a time")
    parser.add_argument("--tls", action="store_true", help="through TLS, with tokens")
    arguments: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"{folder}/store")
        write_bundle(store, "v1", Catalogue.random(items=ITEMS, dimension=64), index="IVF64,Flat")
        with served(store, Path(folder), secured=arguments.tls) as server:
            server.serving("v1")
            if arguments.odd is not None:
                show_odd(server, arguments.odd, arguments.callers)
                return
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
