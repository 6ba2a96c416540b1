"""The ports that several processes share: the kernel spreads connections over those that listen (SO_REUSEPORT)."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from weir.serving.config import ServingConfig

__all__ = ["reserved"]

_PORTS: Final = ("port", "http_port", "health_port")


@contextlib.contextmanager
def reserved(config: ServingConfig) -> Iterator[ServingConfig]:
    """Keep the ports of a server while inside; yields its settings with the numbers of free ports in place of 0.

    Raises `OSError` where a port is taken: a server elsewhere that shares its port would get a part of the connections.
    """
    with contextlib.ExitStack() as kept:
        numbers = {}
        for name in _PORTS:
            wanted = getattr(config, name)
            if wanted is None:
                continue
            try:
                numbers[name] = _reserve(config.host, wanted, kept)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}: serving.{name} = {wanted} of {config.host}") from error
        yield config.model_copy(update=numbers)


def _reserve(host: str, port: int, kept: contextlib.ExitStack) -> int:
    """Bind a port without listening, so that it gets no connections, and return its number."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    if port:
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    held = kept.enter_context(socket.socket(family, kind))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(address)
    return int(held.getsockname()[1])
