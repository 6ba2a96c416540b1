"""Where the ranks of a run find each other."""

import os
import socket
from typing import Final

# torch.optim loads it, too. Its defaults keep the group that is there then: never given back, its threads would end
# with Python, and take the process down where one still has a tensor in its hands.
import torch.distributed.nn  # noqa: F401
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["RENDEZVOUS", "meet", "stay_on_loopback"]

RENDEZVOUS: Final = "RANKS_RENDEZVOUS"
"""Environment variable: the file where the ranks of one machine meet, so that no port is opened for it."""


def meet(rank: int, world_size: int) -> Store:
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


def stay_on_loopback() -> None:
    """Have gloo and NCCL listen on the loopback interface only, unless told otherwise."""
    for _, name in socket.if_nameindex():
        if name in {"lo", "lo0"}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
