"""A user tower that `torch.compile` has compiled, for training on a CPU.

Kernels depend on the shapes that they are compiled for. A run that was killed must go on with the same ones, so they
are always compiled for the same shapes, whatever comes first, and serve all others.
"""

from collections.abc import Callable
from shutil import which
from typing import Final, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from trainer.tower_config import TowerConfig
from trainer.towers.tower import Tower

__all__ = ["compiled"]

_USERS: Final = 16
_COMPILERS: Final = ("g++", "clang++")

_COMPILED: Final = WeakKeyDictionary[Tower, Callable[[Tensor, Tensor], Tensor]]()


def compiled(tower: Tower, config: TowerConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what does in training what the tower does, to rounding; compiled once for each tower of a process.

    It takes a C++ compiler, and half a minute; what was compiled before is found again in torch's own cache.

    Raises
    ------
    ValueError
        If the machine has no C++ compiler.
    """
    if not any(map(which, _COMPILERS)):
        raise ValueError("compiled = true takes a C++ compiler: install g++, or set compiled = false")
    if tower not in _COMPILED:
        _COMPILED[tower] = _compile(tower, config)
    return _COMPILED[tower]


def _compile(tower: Tower, config: TowerConfig) -> Callable[[Tensor, Tensor], Tensor]:
    fast = torch.compile(tower, dynamic=True)

    def call(history: Tensor, mask: Tensor) -> Tensor:
        # A dimension of 1 has kernels of its own, and is rare.
        return cast(Tensor, (fast if min(mask.shape) > 1 else tower)(history, mask))

    # Histories that fill all places, and shorter ones: towers may treat them apart.
    for length in (config.history_length, config.history_length // 2 + 1):
        _try(call, tower, (_USERS, length, config.dimension))
    return call


def _try(call: Callable[[Tensor, Tensor], Tensor], tower: Tower, shape: tuple[int, int, int]) -> None:
    history = torch.zeros(shape).to(next(tower.parameters())).requires_grad_()
    with torch.random.fork_rng(devices=[]):
        found = call(history, torch.ones(shape[:2], dtype=torch.bool, device=history.device))
        torch.autograd.grad(found.sum(), [history, *tower.parameters()], allow_unused=True)
