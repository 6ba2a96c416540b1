"""Exchange of tensors between the ranks of one machine through shared memory, and packing of several tensors.

Over loopback every byte goes through the kernel twice, and each message wakes several threads. Here a rank writes its
data to shared memory, tells each other rank the range of its part, and copies the parts that it gets from the others.
"""

import math
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

__all__ = ["SharedMemory", "bytes_of", "packed", "unpacked"]


Bytes = npt.NDArray[np.uint8]
Places = list[tuple[int, int]]

_BOXES: Final = 2
"""Boxes of a rank, used in turn: all other ranks have read a box before it is written again."""

_KEPT: Final = 1 << 24
"""Bytes of a box; a box enlarged for one exchange shrinks again at its next use."""

_PLACE: Final = struct.Struct("qq")
"""Start and end of a part in a box."""

_OWNER: Final = struct.Struct("iii")
"""Peer credentials on Linux: process, user and group."""


def packed(parts: tuple[Tensor, ...]) -> Tensor:
    """Pack several tensors (n, ...) into one (n, bytes), line by line, so that one exchange sends all of them."""
    return torch.cat([bytes_of(part) for part in parts], 1)


def unpacked(lines: Tensor, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of packed lines (n, bytes), with dtypes and shapes as in `like` except for n."""
    tensors = tuple(part.new_empty(len(lines), *part.shape[1:]) for part in like)
    into = [bytes_of(tensor) for tensor in tensors]
    for target, part in zip(into, torch.split(lines, [target.shape[1] for target in into], 1), strict=True):
        target.copy_(part)
    return tensors


def bytes_of(lines: Tensor) -> Tensor:
    """Return the bytes of each line of a tensor (n, ...), (n, bytes); without a copy if it is contiguous."""
    width = math.prod(lines.shape[1:])
    # A tensor with at most one element may have any strides; `view` accepts only these.
    return lines.contiguous().as_strided((len(lines), width), (width, 1)).view(torch.uint8)


@dataclass
class Box:
    """A shared-memory file, written by one rank and read by all others."""

    file: int
    _bytes: Bytes | None = None

    def fit(self, needed: int) -> None:
        """Resize the file to `needed` bytes, but at least 16 MiB; for the writer only."""
        size = max(needed, _KEPT)
        if os.fstat(self.file).st_size != size:
            os.ftruncate(self.file, size)

    def bytes(self, first: int, last: int) -> Bytes:
        """Return the bytes [first, last), which must exist."""
        if self._bytes is None or len(self._bytes) < last:
            self._bytes = np.frombuffer(mmap.mmap(self.file, os.fstat(self.file).st_size), np.uint8)
        return self._bytes[first:last]


@dataclass(frozen=True)
class Peer:
    """Another rank of the machine: the connection to it, and its boxes."""

    rank: int
    connection: socket.socket
    boxes: list[Box]

    @classmethod
    def greeted(cls, connection: socket.socket, rank: int, own: list[Box]) -> Self:
        """Exchange boxes over a connection, and return the peer at its other end.

        Raises `RuntimeError` if the process has another user or has ended.
        """
        user = _OWNER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _OWNER.size))[1]
        if user != os.getuid():
            raise RuntimeError(f"a process of user {user} pretends to be a rank of this run")
        socket.send_fds(connection, [_PLACE.pack(rank, 0)], [box.file for box in own])
        message, files, _, _ = socket.recv_fds(connection, _PLACE.size, _BOXES)
        if not message:
            raise RuntimeError("a rank has ended before it had met the others")
        return cls(_PLACE.unpack(message)[0], connection, [Box(file) for file in files])

    def tell(self, first: int, last: int) -> None:
        """Tell the peer the range of its part in this rank's box."""
        with self._named():
            self.connection.send(_PLACE.pack(first, last))

    def part(self, turn: int) -> Bytes:
        """Wait for the peer, and return its part for this rank, in the box number `turn`."""
        with self._named():
            message = self.connection.recv(_PLACE.size)
            if not message:
                raise ConnectionError
        return self.boxes[turn].bytes(*_PLACE.unpack(message))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors of the connection into a `RuntimeError` that names the rank."""
        try:
            yield
        except TimeoutError as error:
            patience = self.connection.gettimeout()
            raise RuntimeError(f"rank {self.rank} has not come to an exchange within {patience:g} s") from error
        except ConnectionError as error:
            raise RuntimeError(f"rank {self.rank} has ended") from error


class SharedMemory:
    """The shared-memory connection of one rank to all ranks of its machine.

    Parameters
    ----------
    rank
        Number of this rank.
    own
        Boxes of this rank.
    peers
        All other ranks.
    """

    def __init__(self, rank: int, own: list[Box], peers: list[Peer]) -> None:
        self._rank, self._own, self._turn = rank, own, 0
        self._peers = {peer.rank: peer for peer in peers}

    @classmethod
    def meet(cls, rank: int, ranks: int, store: Store, patience: float) -> Self:
        """Connect to the other ranks through `store`; each may take `patience` seconds, here and in each exchange."""
        own = [Box(os.memfd_create("exchange")) for _ in range(_BOXES)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            name = f"weir-{secrets.token_hex(16)}"
            # A leading NUL byte makes this an abstract socket, without a file.
            listener.bind(f"\0{name}")
            listener.listen(ranks)
            listener.settimeout(patience)
            store.set(f"exchange/{rank}", name)
            connections = [_connected(store.get(f"exchange/{other}").decode()) for other in range(rank)]
            try:
                connections += [listener.accept()[0] for _ in range(rank + 1, ranks)]
            except TimeoutError as error:
                raise RuntimeError(
                    f"not all of {ranks} ranks have started within {patience:g} s of rank {rank}"
                ) from error
        for connection in connections:
            connection.settimeout(patience)
        return cls(rank, own, [Peer.greeted(connection, rank, own) for connection in connections])

    def all_to_all(self, into: Tensor, lines: Tensor, receive: list[int], send: list[int]) -> None:
        """Send each rank its part of `lines` (sum(send), ...); fill `into` (sum(receive), ...) with the parts received.

        Collective. Raises `RuntimeError` if a rank has ended, or does not take part in time.
        """
        sent, came = bytes_of(lines.detach()), bytes_of(into)
        parts, places = _places(send, sent.shape[1]), _places(receive, came.shape[1])
        self._swap(sent.view(-1).numpy(), came.view(-1).numpy(), parts, places)

    def _swap(self, sent: Bytes, came: Bytes, parts: Places, places: Places) -> None:
        """Send each rank its part of `sent`, and copy the received parts to their places in `came`."""
        box = self._own[self._turn]
        box.fit(len(sent))
        for other, peer in self._peers.items():
            box.bytes(*parts[other])[:] = sent[slice(*parts[other])]
            peer.tell(*parts[other])
        came[slice(*places[self._rank])] = sent[slice(*parts[self._rank])]
        for other, peer in self._peers.items():
            came[slice(*places[other])] = peer.part(self._turn)
        self._turn = (self._turn + 1) % _BOXES

    def close(self) -> None:
        """Close all connections and files."""
        for peer in self._peers.values():
            peer.connection.close()
        for box in [*self._own, *(box for peer in self._peers.values() for box in peer.boxes)]:
            os.close(box.file)


def _connected(name: str) -> socket.socket:
    """Return a connection to the abstract socket `name`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"\0{name}")
    return connection


def _places(counts: list[int], width: int) -> Places:
    """Return the byte ranges of parts with these numbers of lines of `width` bytes."""
    return list(pairwise([0, *accumulate(count * width for count in counts)]))
