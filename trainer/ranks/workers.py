"""The ranks of a run: their rendezvous, collectives, and work of rank 0 in which other ranks answer queries.

Every rank sees the whole stream; the rows of a step are split over ranks, and the item table is sharded
(`weir.trainer.items.embeddings`). With one rank, collectives do nothing. Sums are taken in the order of ranks, so
they are bit-identical in every run. Ranks of one machine meet without the network, and exchange CPU tensors through
shared memory.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

# torch.optim imports torch.distributed.nn, too. Its defaults would hold a process group that exists by then: never
# released, its threads would end with Python, and crash the process if one still holds a tensor. So import it now.
import torch.distributed.nn
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from weir.trainer.ranks.device import device_of
from weir.trainer.ranks.shared_memory import SharedMemory

__all__ = ["RENDEZVOUS", "Workers", "deterministic", "meet", "stay_on_loopback"]


RENDEZVOUS: Final = "RANKS_RENDEZVOUS"
"""Environment variable with a file through which the ranks of one machine meet, so that no port is opened."""


PayloadT = TypeVar("PayloadT")

_POLL_SECONDS: Final = 0.01
_SOON_SECONDS: Final = 0.0002  # after an answer, since another question often follows
_PATIENCE: Final = 300.0
"""Default for the seconds that ranks wait for another rank."""


def meet(rank: int, world_size: int) -> Store:
    """Return an empty store through which the ranks of a run meet.

    On one node, torchrun keeps its store over restarts. New ranks would dial the addresses of killed ranks in it, so
    each restart gets its own name space, or file. Over several nodes the restart counts may differ; there
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` makes torchrun start with a new store.
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


def stay_on_loopback() -> None:
    """Restrict gloo and NCCL to the loopback interface, unless the environment names another one."""
    for _, name in socket.if_nameindex():
        if name in {"lo", "lo0"}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


@dataclass
class Workers(AbstractContextManager["Workers"]):
    """One rank and its process group; a context manager that joins the group and leaves it.

    A rank that does not take part in a collective within `patience` counts as lost. `waited` sums the seconds spent
    waiting for other ranks or exchanging data.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patience: timedelta = timedelta(seconds=_PATIENCE)
    waited: float = field(default=0.0, init=False)
    _store: Store | None = field(default=None, init=False, repr=False)
    _memory: SharedMemory | None = field(default=None, init=False, repr=False)
    _meetings: int = field(default=0, init=False, repr=False)
    _asked: list[str] | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_environment(cls, device: Literal["auto", "cpu", "cuda"] = "auto", patience: float = _PATIENCE) -> Self:
        """Read torchrun's environment variables; without them, the process is a single rank.

        Raises
        ------
        ValueError
            If ``cuda`` is set and the machine has no CUDA device.
        """
        number = int(os.environ.get("LOCAL_RANK", "0"))
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return cls(rank, ranks, device_of(device, number), timedelta(seconds=patience))

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files, metrics and progress."""
        return self.rank == 0

    @property
    def has_nodes(self) -> bool:
        """Whether the run has ranks on several nodes, each with its own launcher."""
        return int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            are_neighbours = os.environ.get("LOCAL_WORLD_SIZE") == str(self.world_size)
            if are_neighbours:
                stay_on_loopback()
            self._store = meet(self.rank, self.world_size)
            if are_neighbours and sys.platform == "linux":
                self._memory = SharedMemory.meet(self.rank, self.world_size, self._store, self.patience.total_seconds())
            dist.init_process_group(
                backend, timeout=self.patience, store=self._store, rank=self.rank, world_size=self.world_size
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            self._memory.close()
        if self.world_size > 1:
            dist.destroy_process_group()

    def nodes(self) -> list[str]:
        """Return the host name of each rank; collective."""
        return self.objects(socket.gethostname())

    def objects(self, here: PayloadT) -> list[PayloadT]:
        """Return the object of each rank; collective."""
        objects = [here] * self.world_size
        if self.world_size > 1:
            with self._waiting():
                dist.all_gather_object(objects, here)
        return objects

    def share(self, rows: int) -> slice:
        """Return this rank's share of a batch; shares differ by at most one row.

        Raises
        ------
        ValueError
            If there are fewer rows than ranks.
        """
        if rows < self.world_size:
            raise ValueError(f"batch_size = {rows} leaves some of the {self.world_size} ranks without a row")
        return self.part(rows)

    def shares(self, rows: int) -> list[slice]:
        """Return the shares of all ranks; see `share`."""
        cuts = [rank * rows // self.world_size for rank in range(self.world_size + 1)]
        return [slice(first, last) for first, last in pairwise(cuts)]

    def part(self, rows: int) -> slice:
        """Return this rank's part of any number of rows; parts differ by at most one row."""
        return self.shares(rows)[self.rank]

    def exchange(self, tensor: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """Send each rank its part of a tensor (sum(send), ...), and return the parts received, in the order of ranks.

        Parameters
        ----------
        tensor
            Lines for rank 0, then lines for rank 1, and so on.
        send, receive
            Number of lines to each rank, and from each rank.
        """
        if self.world_size == 1:
            return tensor
        received = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        with self._waiting():
            if self._memory is not None and tensor.device.type == "cpu":
                self._memory.all_to_all(received, tensor, receive, send)
            else:
                dist.all_to_all_single(received, tensor.contiguous(), receive, send)
        return received

    def counts(self, send: list[int]) -> list[int]:
        """Exchange counts: send each rank the number of lines it will get; return the numbers to receive."""
        ones = [1] * self.world_size
        return self.exchange(torch.tensor(send), ones, ones).tolist()

    def most(self, count: int) -> int:
        """Return the maximum of `count` over ranks; collective."""
        return max(self.counts([count] * self.world_size))

    def deliver(self, lines: Tensor, owners: npt.NDArray[np.int64]) -> Tensor:
        """Send lines (n, ...) to the ranks `owners` (n,); return the lines received, by rank; collective."""
        if self.world_size == 1:
            return lines
        order = torch.from_numpy(np.argsort(owners, kind="stable"))
        send = np.bincount(owners, minlength=self.world_size).tolist()
        return self.exchange(lines[order], send, self.counts(send))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors (...) of all ranks, of equal shape, stacked to (ranks, ...)."""
        ones = [1] * self.world_size
        return self.exchange(tensor.expand(self.world_size, *tensor.shape), ones, ones)

    def collect(self, lines: Tensor) -> Tensor:
        """Return the lines (n, ...) of all ranks, concatenated; n may differ; collective."""
        return torch.cat(self.collected(lines))

    def collected(self, lines: Tensor) -> tuple[Tensor, ...]:
        """Return the lines (n, ...) of each rank, one tensor per rank; n may differ; collective."""
        if self.world_size == 1:
            return (lines,)
        return self.spread(lines, self.gather(torch.tensor(len(lines))).tolist())

    def spread(self, lines: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """Return the lines of each rank as `collected` does, for known `sizes`, the n of each rank; collective."""
        everywhere = torch.cat([lines] * self.world_size)
        return torch.split(self.exchange(everywhere, [len(lines)] * self.world_size, sizes), sizes)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in the order of ranks, in place; collective, with the same bits on all ranks.

        Each rank sums one share of the numbers, so the bytes that it sends hardly depend on the number of ranks.
        """
        if self.world_size == 1:
            return tensor
        flat = tensor.flatten()
        sizes = [len(flat[share]) for share in self.shares(len(flat))]
        mine = [sizes[self.rank]] * self.world_size
        total, *others = self.exchange(flat, sizes, mine).view(self.world_size, -1)
        for other in others:
            total += other
        return tensor.copy_(torch.cat(self.spread(total, sizes)).view_as(tensor))

    def broadcast(self, payload: PayloadT) -> PayloadT:
        """Return rank 0's payload on every rank; collective."""
        if self.world_size == 1:
            return payload
        boxed = [payload]
        with self._waiting():
            dist.broadcast_object_list(boxed, src=0, device=torch.device("cpu"))
        return boxed[0]

    def any(self, here: bool) -> bool:
        """Return whether the flag is set on any rank; collective."""
        return bool(self.sum(torch.tensor([int(here)])).item())

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Add the time in the context to `waited`."""
        since = time.monotonic()
        yield
        self.waited += time.monotonic() - since

    def first(self, work: Callable[[], object], answer: Callable[[str], object] | None = None) -> None:
        """Run `work` on rank 0 while the other ranks wait, without the timeout of a collective; call it on all ranks.

        Rank 0 may `ask` the other ranks to take part in a collective; each then calls `answer` with the question.
        """
        if self._store is None:
            work()
            return
        self._meetings += 1
        if self.is_first:
            self._lead(self._store, work)
        else:
            self._wait(self._store, answer)
        # Rank 0 may host the store: it must not leave while others still read it.
        with self._waiting():
            dist.barrier()
        if self.is_first:
            for key in (self._done, *map(self._question, range(len(self._asked or ())))):
                self._store.delete_key(key)
            self._asked = None

    def ask(self, question: str) -> None:
        """Inside `first`, make the waiting ranks call `answer`, so that they join the next collective.

        Outside `first`, do nothing: all ranks then call the collective themselves.
        """
        if self._store is not None and self._asked is not None:
            self._store.set(self._question(len(self._asked)), question)
            self._asked.append(question)

    def _lead(self, store: Store, work: Callable[[], object]) -> None:
        """Run `work` on rank 0, then tell the other ranks that it is done."""
        self._asked = []
        try:
            work()
        finally:
            store.set(self._done, "")

    def _wait(self, store: Store, answer: Callable[[str], object] | None) -> None:
        """Answer the questions of rank 0 until it is done."""
        answered, pause = 0, _POLL_SECONDS
        while True:
            is_over = store.check([self._done])  # looked at first: rank 0 may ask just before its end
            if store.check([self._question(answered)]):
                if answer is None:
                    raise RuntimeError("rank 0 asks for rows of the table while the other ranks do not answer")
                answer(store.get(self._question(answered)).decode())
                answered, pause = answered + 1, _SOON_SECONDS
            elif is_over:
                return
            else:
                time.sleep(pause)
                pause = min(2 * pause, _POLL_SECONDS)

    @property
    def _done(self) -> str:
        return f"done/{self._meetings}"

    def _question(self, number: int) -> str:
        return f"question/{self._meetings}/{number}"


@contextmanager
def deterministic() -> Iterator[None]:
    """Context manager that selects torch's deterministic algorithms; on a GPU, operations without one only warn."""
    memory: Any = torch.utils.deterministic  # its types do not know the attribute
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn" if torch.cuda.is_available() else "error")
    # Filling would write each new tensor twice; no tensor is read before it is written.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled
