"""A server that can be at another address: connections to an address of loopback are passed on to where it is."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.ports import free_port

__all__ = ["Relay", "relayed"]


class Relay:
    """Passes connections to `port` of an address on to a server at 127.0.0.1."""

    def __init__(self, server_port: int) -> None:
        self.port, self._server_port = free_port(), server_port
        self._open: list[socket.socket] = []

    def start(self, address: str) -> None:
        """Listen at an address."""
        listener = socket.create_server((address, self.port))
        self._open = [listener]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self) -> None:
        """End every connection, as a server that is killed does, and refuse others."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def relayed(server_port: int) -> Iterator[Relay]:
    """Have a relay while inside; it does not listen yet."""
    relay = Relay(server_port)
    try:
        yield relay
    finally:
        relay.stop()
