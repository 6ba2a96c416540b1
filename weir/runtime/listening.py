"""Listening sockets of servers: one spelling of hosts for every listener, and all addresses of a host.

A host is a name or an address, an IPv6 address with or without brackets. A server listens on all addresses of its host,
on one port, except addresses that this machine does not have (a machine without IPv6 may still resolve ``localhost`` to
``::1``). Any other failure prevents the start, so that a server listens on all of its addresses or not at all. ``::``
means every interface, also of IPv4.
"""

import contextlib
import errno
import logging
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator

from weir.contracts.base.errors import UserError

__all__ = [
    "CannotListenError",
    "Host",
    "bare_host",
    "in_url",
    "is_held",
    "is_loopback",
    "listening",
    "listening_at",
    "reached",
    "reserved",
]

log = logging.getLogger(__name__)

_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""System errors for an address that the machine does not have, or of a family that it does not have."""

_ADVICE: Final = {
    errno.EADDRINUSE: "stop the process that holds the port (`ss -ltnp` names it), or let `--set serving.port=0`, "
    "`--set SECTION.metrics_port=0` take any free one",
    errno.EACCES: "this process may not listen there: take a port above 1023",
    errno.EPERM: "this process may not listen there: take a port above 1023",
    **dict.fromkeys(_ABSENT, "take an address of this machine (`ip address` lists them), or :: for all of them"),
}
_UNRESOLVED: Final = "take an address of this machine (`ip address` lists them), or a name that it knows"

_TRIES: Final = 16
"""Limit on attempts to find a port that is free on all addresses of a host."""

_TURN_SECONDS: Final = 10.0

_BACKLOG: Final = 1024
"""Length of the queue of connections to accept."""


class CannotListenError(UserError, OSError):
    """A server cannot listen on a host and port; `errno` is the system's, and the message gives advice."""

    def __init__(self, message: str, number: int | None = None, advice: str = "") -> None:
        super().__init__(message)
        self.errno, self.hint = number, advice  # type: ignore[misc]  # the hint follows the system's error

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of(cls, error: OSError, what: str, host: str, port: int) -> Self:
        """Return the error for a failure of the listener `what` on a host and port, with advice."""
        advice = _UNRESOLVED if isinstance(error, socket.gaierror) else _ADVICE.get(error.errno or 0, "")
        return cls(f"{error.strerror or error}: {what} on host {host!r}, port {port}", error.errno, advice)


def bare_host(host: str) -> str:
    """Return a host without the brackets of an IPv6 address, as settings and listeners spell hosts.

    Raises `ValueError` for an empty host or a host with a port. `in_url` adds the brackets that are needed before a
    port.
    """
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    if not bare.strip():
        raise ValueError("a host is wanted, an empty text came: take 127.0.0.1, or :: for every interface")
    if is_bracketed or ":" in bare:
        try:
            IPv6Address(bare)
        except ValueError:
            raise ValueError(
                f"a host is wanted, {host!r} came: a name or an address, without a port, which has its own setting"
            ) from None
    return bare


Host = Annotated[str, AfterValidator(bare_host)]
"""A host in settings, kept without brackets."""


def is_loopback(host: str) -> bool:
    """Return whether a host is on the loopback interface, which only this machine reaches."""
    try:
        bare = bare_host(host)
        return bare == "localhost" or ip_address(bare).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """Return a host as spelled before a port, with an IPv6 address in brackets; raises `ValueError` as `bare_host`."""
    bare = bare_host(host)
    return f"[{bare}]" if ":" in bare else bare


def reached(host: str) -> str:
    """Return the host, as spelled before a port, at which this machine reaches a listener on `host`."""
    # A listener on every interface also answers on loopback.
    return "127.0.0.1" if bare_host(host) in {"0.0.0.0", "::"} else in_url(host)  # noqa: S104 - compared only


def listening(what: str, host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Return a listening TCP socket for each address of a host that this machine has, all on one port.

    Port 0 takes a free one. `shared` lets other processes of this server listen on the port, too (SO_REUSEPORT);
    otherwise a second server fails. `what` names the listener in logs and errors. Raises `CannotListenError`.
    """
    return _sockets(what, host, port, _Use(shared=shared, listens=True))


def listening_at(what: str, host: str, port: int, *, shared: bool = False) -> tuple[list[str], int]:
    """Return the addresses and the port for a library that opens its own sockets; raises as `listening`.

    For a host with one address, port 0 stays 0. Use `in_url` to put an address before a port.
    """
    made = _sockets(what, host, port, _Use(shared=shared, listens=False))
    number = made[0].getsockname()[1]
    found = [socket.getnameinfo(each.getsockname(), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0] for each in made]
    for each in made:
        each.close()
    return found, port if len(found) == 1 else number


@contextlib.contextmanager
def reserved(what: str, host: str, port: int) -> Iterator[int]:
    """Context manager: reserve a port for processes that share it, without listening; yields the port.

    Another server cannot reserve or take the port, not even at the same moment. Raises as `listening`.
    """
    with contextlib.ExitStack() as kept:
        with _turn():
            if port:
                listening_at(what, host, port)
            made = [kept.enter_context(each) for each in _sockets(what, host, port, _Use(shared=True, listens=False))]
        yield int(made[0].getsockname()[1])


def is_held(what: str, host: str, port: int) -> bool:
    """Return whether another socket holds the port on which the listener `what` is to listen.

    A connection holds its local port, too. Raises as `listening` for other failures.
    """
    try:
        listening_at(what, host, port)
    except CannotListenError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Context manager that one server of this machine at a time can enter, to check for a free port and take it.

    The kernel lets several processes bind a shared port, and has no call that checks and takes it. Raises
    `TimeoutError`.
    """
    with socket.socket(socket.AF_UNIX) as turn:
        ends = time.monotonic() + _TURN_SECONDS
        # An abstract name disappears with its process, and belongs to the network namespace, as ports do.
        while sys.platform == "linux":
            try:
                turn.bind("\0weir-reserves-ports")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > ends:
                    raise
                time.sleep(0.01)
        yield


@dataclass(frozen=True)
class _Use:
    """How sockets are used: `shared` by several processes, and whether they listen or only reserve the port."""

    shared: bool
    listens: bool


@dataclass(frozen=True)
class _Address:
    family: int
    where: Any


def _resolved(what: str, host: str, port: int) -> list[_Address]:
    try:
        found = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)
    except ValueError as error:
        raise CannotListenError(f"{what} on host {host!r}, port {port}: {error}") from None
    except OSError as error:
        raise CannotListenError.of(error, what, host, port) from error
    return list(dict.fromkeys(_Address(family, where) for family, _, _, _, where in found))


def _sockets(what: str, host: str, port: int, use: _Use) -> list[socket.socket]:
    addresses = _resolved(what, host, port)
    for trial in range(_TRIES):
        try:
            return _opened(what, host, port, addresses, use)
        except CannotListenError as error:
            # A free port of the first address may be taken on another one.
            if port or error.errno != errno.EADDRINUSE or trial == _TRIES - 1:
                raise
    raise AssertionError("the last trial returns or raises")


def _opened(what: str, host: str, port: int, addresses: Sequence[_Address], use: _Use) -> list[socket.socket]:
    absent: OSError | None = None
    made: list[socket.socket] = []
    with contextlib.ExitStack() as kept:
        for address in addresses:
            try:
                made.append(kept.enter_context(_socket(address, port, use)))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise CannotListenError.of(error, what, host, port) from error
                absent = error
            else:
                port = port or made[0].getsockname()[1]
        if not made:
            raise CannotListenError.of(absent or OSError(0, "it has no address"), what, host, port) from absent
        kept.pop_all()
    if len(made) < len(addresses):
        served = ", ".join(str(each.getsockname()[0]) for each in made)
        log.warning("%s: host %r has addresses that this machine has not; it listens on %s", what, host, served)
    return made


def _socket(address: _Address, port: int, use: _Use) -> socket.socket:
    made = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        if use.listens or not use.shared:
            # Allow a port in TIME_WAIT of an earlier process. No other process may bind a reserved one.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if use.shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if address.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address.where[0], port, *address.where[2:]))
        if use.listens:
            made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
