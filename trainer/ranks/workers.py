"""The ranks of one run: started by torchrun, or a single process without it.

Every rank holds the whole model and sees the whole stream; a step's rows are shared out. Collectives are sums and
broadcasts only, and with one rank they are nothing at all. Ranks of one machine meet and talk without leaving it.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["RENDEZVOUS", "Workers", "deterministic"]

PayloadT = TypeVar("PayloadT")

RENDEZVOUS: Final = "RANKS_RENDEZVOUS"
"""Environment variable: the file where the ranks of one machine meet, so that no port is opened for it."""

_POLL_SECONDS: Final = 0.01


@dataclass
class Workers(AbstractContextManager["Workers"]):
    """One process among its peers; enter it to join the process group, leave it to go."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _store: Store | None = field(default=None, init=False, repr=False)
    _meetings: int = field(default=0, init=False, repr=False)

    @classmethod
    def from_environment(cls, device: Literal["auto", "cpu", "cuda"] = "auto") -> "Workers":
        """Read what torchrun says of this process; without it the process is alone.

        Raises
        ------
        ValueError
            If ``cuda`` is asked for where there is none.
        """
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device = cuda, but this machine offers no CUDA device: set device = cpu or auto")
        chosen = torch.device("cpu")
        if device != "cpu" and torch.cuda.is_available():
            chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), chosen)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files, metrics and progress."""
        return self.rank == 0

    def __enter__(self) -> "Workers":
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            if os.environ.get("LOCAL_WORLD_SIZE") == str(self.world_size):
                _stay_on_loopback()
            self._store = _meet(self.rank, self.world_size)
            dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.world_size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.world_size > 1:
            dist.destroy_process_group()

    def share(self, rows: int) -> slice:
        """Return this rank's share of a batch: shares differ by one row at most.

        Raises
        ------
        ValueError
            If there are fewer rows than ranks.
        """
        if rows < self.world_size:
            raise ValueError(f"batch_size = {rows} leaves some of the {self.world_size} ranks without a row")
        first, last = (rank * rows // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(first, last)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor over all ranks, in place; the result is the same, bit for bit, on every rank."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, payload: PayloadT) -> PayloadT:
        """Return rank 0's payload on every rank."""
        if self.world_size == 1:
            return payload
        boxed = [payload]
        dist.broadcast_object_list(boxed, src=0, device=torch.device("cpu"))
        return boxed[0]

    def first(self, work: Callable[[], object]) -> None:
        """Let rank 0 do `work` while the others wait, however long it takes: a collective would time out."""
        if self._store is None:
            work()
            return
        self._meetings += 1
        done = f"done/{self._meetings}"
        if self.is_first:
            try:
                work()
            finally:
                self._store.set(done, "")
        else:
            while not self._store.check([done]):
                time.sleep(_POLL_SECONDS)
        # Rank 0 may hold the store itself: it must not leave while others still ask.
        dist.barrier()
        if self.is_first:
            self._store.delete_key(done)


def _meet(rank: int, world_size: int) -> Store:
    """Return the store where ranks meet, empty.

    On one node torchrun keeps its store over restarts. The addresses that killed ranks left there would be dialled
    again, so each restart gets a name space of its own, or a file. Over several nodes the restart counts may differ;
    there ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` makes torchrun start with a new store.
    """
    restart = f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store: Store
    if file := os.environ.get(RENDEZVOUS):
        store, _, _ = next(rendezvous(f"file://{file}-{restart}", rank, world_size))
        return store
    store, _, _ = next(rendezvous("env://", rank, world_size))
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return PrefixStore(restart, store)


def _stay_on_loopback() -> None:
    """Have gloo and NCCL listen on the loopback interface only, unless told otherwise."""
    for _, name in socket.if_nameindex():
        if name in {"lo", "lo0"}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for algorithms whose results do not vary between runs (a GPU may not have one of each)."""
    memory: Any = torch.utils.deterministic  # its types do not know the attribute
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn" if torch.cuda.is_available() else "error")
    # Each new tensor would be written twice; none is read before it is written.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled
