"""Ports for servers that must know theirs before they start."""

import random
import socket
from typing import Final

__all__ = ["free_port"]

_PORTS: Final = range(25_000, 32_000)
"""Below those that Linux and macOS give to outgoing connections: none can take a port before its server does.

And above those of a `weir up` whose ports are moved by at most 15,000.
"""

_given: set[int] = set()


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on, another at each call.

    It is random: processes of tests that run side by side rarely draw the same.
    """
    # Hypothesis seeds the module's own generator, which would then draw the same everywhere.
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"every port from {_PORTS.start} to {_PORTS.stop - 1} is in use")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
