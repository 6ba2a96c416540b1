import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ports import free_port
from weir.runtime import listening as room
from weir.runtime.listening import CannotListenError, bare_host, in_url, is_held, listening, listening_at, reserved

ABSENT = "198.51.100.7"
"""Of a network for documentation: no machine has it."""

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z][a-z0-9-]{0,10}){0,3}", fullmatch=True)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the name ``several`` have addresses, which the system's resolver knows for none."""
    known: list[str] = []
    resolve = socket.getaddrinfo

    def answered(host: str, *rest: Any, **kind: Any) -> list[Any]:
        hosts = known if host == "several" else [host]
        return [each for address in hosts for each in resolve(address, *rest, **kind)]

    def name(*addresses: str) -> None:
        known[:] = addresses
        monkeypatch.setattr(room.socket, "getaddrinfo", answered)

    return name


@contextlib.contextmanager
def held(host: str, port: int = 0) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as holder:
        holder.bind((host, port))
        holder.listen()
        yield holder.getsockname()[1]


def closed(opened: list[socket.socket]) -> list[tuple[str, int]]:
    found = [each.getsockname()[:2] for each in opened]
    for each in opened:
        each.close()
    return found


@given(st.ip_addresses(v=6))
def test_an_address_of_ipv6_is_the_same_host_with_brackets_and_without(address: Any) -> None:
    for spelled in (str(address), address.exploded, str(address).upper()):
        assert bare_host(spelled) == bare_host(f"[{spelled}]") == spelled
        assert in_url(spelled) == in_url(f"[{spelled}]") == f"[{spelled}]"


@given(st.one_of(st.ip_addresses(v=4).map(str), NAMES))
def test_any_other_host_is_spelled_as_it_is_and_has_no_brackets(host: str) -> None:
    assert bare_host(host) == in_url(host) == host
    for wrong in (f"[{host}]", f"{host}:50051", f"http://{host}"):
        with pytest.raises(ValueError, match="a host is wanted"):
            bare_host(wrong)


@pytest.mark.parametrize("host", ["", " ", "[]", "[ ]"])
def test_no_host_is_an_error_of_its_own(host: str) -> None:
    with pytest.raises(ValueError, match="an empty text came"):
        bare_host(host)
    with pytest.raises(CannotListenError) as refusal:
        listening("gRPC", host, 0)
    assert refusal.value.errno is None
    assert "holds the port" not in " ".join(refusal.value.explain())


@needs_ipv6
def test_all_addresses_of_a_name_are_listened_on_at_one_port(named: Callable[..., None]) -> None:
    named("::1", "127.0.0.1", "127.0.0.1")
    for port in (0, free_port()):
        opened = listening("gRPC", "several", port)
        number = opened[0].getsockname()[1]
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, number), timeout=5).close()
        assert sorted(closed(opened)) == [("127.0.0.1", number), ("::1", number)]
        addresses, given_port = listening_at("gRPC", "several", port)
        assert (sorted(addresses), given_port > 0) == (["127.0.0.1", "::1"], True)


@needs_ipv6
def test_every_interface_of_ipv6_is_every_interface(named: Callable[..., None]) -> None:
    (opened,) = listening("gRPC", "[::]", 0)
    with opened:
        for host in ("::1", "127.0.0.1", "127.0.0.2"):
            socket.create_connection((host, opened.getsockname()[1]), timeout=5).close()


def test_an_address_of_another_machine_is_left_out_with_a_line(
    named: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    for addresses in ([ABSENT, "127.0.0.1"], ["127.0.0.1", ABSENT]):
        named(*addresses)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert [host for host, _ in closed(listening("gRPC", "several", 0))] == ["127.0.0.1"]
        (line,) = caplog.messages
        assert "'several'" in line
    named(ABSENT, "198.51.100.8")
    with pytest.raises(CannotListenError) as refusal:
        listening("gRPC", "several", 0)
    assert refusal.value.errno == errno.EADDRNOTAVAIL
    assert "an address of this machine" in " ".join(refusal.value.explain())


def test_a_machine_without_ipv6_does_with_the_others(
    named: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnlyFour(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **more)

    named("::1", "127.0.0.1")
    monkeypatch.setattr(room.socket, "socket", OnlyFour)
    assert [host for host, _ in closed(listening("gRPC", "several", 0))] == ["127.0.0.1"]


@pytest.mark.parametrize("first", [True, False])
def test_a_port_that_is_held_on_one_address_refuses_all(named: Callable[..., None], first: bool) -> None:
    named(*(["127.0.0.2", "127.0.0.1"] if first else ["127.0.0.1", "127.0.0.2"]))
    with held("127.0.0.2", free_port()) as port:
        for ask in (listening, listening_at):
            with pytest.raises(CannotListenError) as refusal:
                ask("gRPC", "several", port)
            assert refusal.value.errno == errno.EADDRINUSE
            assert "holds the port" in " ".join(refusal.value.explain())
        assert is_held("gRPC", "several", port)
        # What was opened before the failure is closed again.
        assert not is_held("gRPC", "127.0.0.1", port)


def test_a_free_port_is_free_on_all_addresses(named: Callable[..., None]) -> None:
    named("127.0.0.1", "127.0.0.2")
    opened = [listening("gRPC", "several", 0) for _ in range(50)]
    ports = [{port for _, port in closed(each)} for each in opened]
    assert {len(each) for each in ports} == {1}
    assert len(set.union(*ports)) == 50


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EADDRINUSE, "holds the port"),
        (errno.EACCES, "above 1023"),
        (errno.EPERM, "above 1023"),
        (errno.EADDRNOTAVAIL, "an address of this machine"),
        (errno.EMFILE, ""),
    ],
)
def test_the_advice_fits_the_failure(number: int, says: str) -> None:
    error = CannotListenError.of(OSError(number, os.strerror(number)), "HTTP", "h", 80)
    (line,) = error.explain()
    assert (error.errno, says in line) == (number, True)
    assert f"{os.strerror(number)}: HTTP on host 'h', port 80" in line
    assert ("holds the port" in line) == (number == errno.EADDRINUSE)


def test_a_name_that_does_not_resolve_is_no_held_port() -> None:
    for ask in (listening, listening_at, is_held):
        with pytest.raises(CannotListenError, match=r"no\.such\.host\.invalid") as refusal:
            ask("gRPC", "no.such.host.invalid", 50051)
        assert isinstance(refusal.value.__cause__, socket.gaierror)
        assert "holds the port" not in " ".join(refusal.value.explain())


RESERVING = """
import sys
from weir.runtime.listening import CannotListenError, reserved
sys.stdin.readline()
try:
    with reserved("gRPC", "127.0.0.1", int(sys.argv[1])):
        print("has it", flush=True)
        sys.stdin.readline()
except CannotListenError:
    print("has it not", flush=True)
    sys.stdin.readline()
"""


def test_of_servers_that_reserve_a_port_at_once_one_gets_it() -> None:
    command = [sys.executable, "-c", RESERVING]
    where = {"cwd": Path(__file__).parents[3], "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    for _ in range(3):
        port = str(free_port())
        started: list[Any] = [subprocess.Popen([*command, port], **where) for _ in range(6)]  # type: ignore[call-overload]
        for turn in ("start", "end"):
            for process in started:
                process.stdin.write(f"{turn}\n")
                process.stdin.flush()
            if turn == "start":
                said = sorted(process.stdout.readline() for process in started)
        for process in started:
            process.communicate()
        assert said == ["has it\n"] + ["has it not\n"] * 5


def test_processes_share_what_is_reserved_and_no_other_server_gets_in() -> None:
    with reserved("gRPC", "127.0.0.1", 0) as port:
        opened = [each for _ in range(2) for each in listening("gRPC", "127.0.0.1", port, shared=True)]
        with pytest.raises(CannotListenError):
            listening("gRPC", "127.0.0.1", port)
        with pytest.raises(CannotListenError), reserved("gRPC", "127.0.0.1", port):
            pass
        closed(opened)
