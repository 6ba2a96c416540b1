"""Rendezvous of the ranks of a run: the store they connect through, and the network interface."""

import os
import socket
from typing import Final

# torch.optim imports it, too, and its defaults would hold a process group that exists by then: never released, its
# threads would end with Python, and crash the process if one still holds a tensor.
import torch.distributed.nn  # noqa: F401
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["RENDEZVOUS", "meet", "stay_on_loopback"]

RENDEZVOUS: Final = "RANKS_RENDEZVOUS"
"""Environment variable: file through which the ranks of one machine meet, so that no port is opened."""


def meet(rank: int, world_size: int) -> Store:
    """Return an empty rendezvous store.

    On one node torchrun keeps its store over restarts. New ranks would dial the addresses that killed ranks left there,
    so each restart gets its own name space, or file. Over several nodes the restart counts may differ;
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
    """Restrict gloo and NCCL to the loopback interface, unless the environment names another one."""
    for _, name in socket.if_nameindex():
        if name in {"lo", "lo0"}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
