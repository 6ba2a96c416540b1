"""Loopback addresses, and the Host headers that a server on the loopback interface accepts."""

from ipaddress import ip_address
from typing import Final

from weir.contracts.listening import bare_host

__all__ = ["is_loopback", "is_own_host"]

_LOCAL: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Return whether an address is on the loopback interface, reachable from this machine only."""
    try:
        bare = bare_host(host)
        return bare == _LOCAL or ip_address(bare).is_loopback
    except ValueError:
        return False


def is_own_host(header: str) -> bool:
    """Return whether the Host header of a request names this machine.

    Protects against DNS rebinding: a web page whose domain resolves to 127.0.0.1 could read data meant for this machine
    only.
    """
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    return is_loopback(name)
