"""Which names a server on the loopback interface answers to."""

from ipaddress import ip_address
from typing import Final

from weir.contracts.listening import bare_host

__all__ = ["is_loopback", "is_own_host"]

_LOCAL: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        bare = bare_host(host)
        return bare == _LOCAL or ip_address(bare).is_loopback
    except ValueError:
        return False


def is_own_host(header: str) -> bool:
    """Say whether the Host header of a request names this machine.

    A page of the web may let its own name point to 127.0.0.1, and would then read what only this machine may read.
    """
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    return is_loopback(name)
