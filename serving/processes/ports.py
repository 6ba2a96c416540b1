"""The ports that several processes share: the kernel spreads connections over those that listen (SO_REUSEPORT)."""

import contextlib
from collections.abc import Iterator
from typing import Final

from weir.runtime.listening import reserved as reserved_port
from weir.serving.config import ServingConfig

__all__ = ["reserved"]

_PORTS: Final = ("port", "http_port", "health_port")


@contextlib.contextmanager
def reserved(config: ServingConfig) -> Iterator[ServingConfig]:
    """Keep the ports of a server while inside; yields its settings with the numbers of free ports in place of 0.

    Raises `CannotListenError` where a port is taken: another server that shares it would get some of the connections.
    """
    with contextlib.ExitStack() as kept:
        numbers = {}
        for name in _PORTS:
            wanted = getattr(config, name)
            if wanted is None:
                continue
            numbers[name] = kept.enter_context(reserved_port(f"serving.{name}", config.host, wanted))
        yield config.model_copy(update=numbers)
