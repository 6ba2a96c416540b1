"""What the parent of a server's processes and each of them tell each other about versions.

One message is one packet of a Unix socket. Files of a version travel as open descriptors with the message that names
them.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

from weir.serving.processes.arrays import MemoryFile, Package

__all__ = ["Channel", "Message", "close_all"]

Kind = Literal["started", "open", "opened", "serve", "serving", "drop", "listen", "listening"]

_MOST_BYTES: Final = 1 << 16
_MOST_FILES: Final = 250
"""The kernel takes 253 descriptors with a message; a version has about 25 large arrays."""


class Message(NamedTuple):
    """What is said; `package` comes with "open". `version` is the promoted one, None before the first."""

    kind: Kind
    version: str | None = None
    package: Package | None = None


@dataclass
class Channel:
    """One end of a pair of sockets. A process that has ended, for whatever reason, closes its end."""

    socket: socket.socket

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return both ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def send(self, message: Message) -> None:
        """Send a message; raises `OSError` where the other end is closed."""
        package = message.package
        files = [package.pickle, *package.files] if package else []
        text = json.dumps({"kind": message.kind, "version": message.version, "files": [_facts(file) for file in files]})
        socket.send_fds(self.socket, [text.encode()], [file.descriptor for file in files])

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, None where the other end is closed; raises `TimeoutError`.

        The descriptors that come with it are the caller's to close (`close`).
        """
        self.socket.settimeout(seconds)
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, _MOST_BYTES, _MOST_FILES)
        except ConnectionError:
            return None
        finally:
            self.socket.settimeout(None)
        if not data:
            return None
        found = json.loads(data)
        files = [
            MemoryFile(number, descriptor, dtype, tuple(shape))
            for (number, dtype, shape), descriptor in zip(found["files"], descriptors, strict=True)
        ]
        package = Package(files[0], tuple(files[1:])) if files else None
        return Message(found["kind"], found["version"], package)

    def close(self) -> None:
        """Close this end, which a process that waits at the other one notices."""
        self.socket.close()


def _facts(file: MemoryFile) -> tuple[Any, ...]:
    return file.number, file.dtype, file.shape


def close_all(files: Sequence[MemoryFile]) -> None:
    """Close the descriptors of files that have been mapped."""
    for file in files:
        os.close(file.descriptor)
