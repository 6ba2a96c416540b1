"""Ports of this machine: who can listen on them, who does."""

import socket
from contextlib import closing

from deploy.engines.settings import HOST

__all__ = ["is_free", "is_listening"]


def is_free(port: int) -> bool:
    """Return whether a server can take the port."""
    with closing(socket.socket()) as probe:
        # As servers do: a port in TIME_WAIT of an earlier process is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    """Return whether a server takes connections at the port."""
    with closing(socket.socket()) as probe:
        probe.settimeout(2)
        return probe.connect_ex((HOST, port)) == 0
