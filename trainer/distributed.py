"""The ranks of one run: started by torchrun, or a single process without it.

Every rank holds the whole model and sees the whole stream; a step's rows are shared out. Collectives are sums and
broadcasts only, and with one rank they are nothing at all.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["Workers"]

PayloadT = TypeVar("PayloadT")


@dataclass
class Workers(AbstractContextManager["Workers"]):
    """One process among its peers; enter it to join the process group, leave it to go."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

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
            store = _store(self.rank, self.world_size)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.world_size > 1:
            dist.destroy_process_group()

    def share(self, rows: int) -> slice:
        """Return this rank's share of a batch; raises `ValueError` where it does not divide evenly."""
        if rows % self.world_size:
            raise ValueError(f"batch_size = {rows} does not divide by the {self.world_size} ranks")
        size = rows // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

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

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()


def _store(rank: int, world_size: int) -> Store:
    """Return the store where ranks meet, empty.

    On one node torchrun keeps its store over restarts. The addresses that killed ranks left there would be dialled
    again, so each restart gets a name space of its own. Over several nodes the restart counts may differ; there
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` makes torchrun begin with a new store.
    """
    store: Store
    store, _, _ = next(rendezvous("env://", rank, world_size))
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
