"""A user tower as steps run it: as it is, compiled by `torch.compile`, with products of bfloat16, or both.

Kernels depend on the shapes that they are compiled for. A run that was killed must go on with the same ones, so they
are always compiled for the same shapes, whatever comes first, and serve all others.
"""

from collections.abc import Callable
from shutil import which
from typing import Final, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from trainer.tower_config import TowerConfig
from trainer.towers.tower import Tower

__all__ = ["Forward", "Precision", "in_training"]

Forward = Callable[[Tensor, Tensor], Tensor]
"""From item vectors (B, L, d) and a mask (B, L) to users (B, d), as `Tower.forward`."""

Precision = Literal["float32", "bfloat16"]

_USERS: Final = 16
_COMPILERS: Final = ("g++", "clang++")

_MADE: Final = WeakKeyDictionary[Tower, dict[tuple[bool, Precision], Forward]]()


def in_training(tower: Tower, config: TowerConfig, *, compiled: bool, precision: Precision = "float32") -> Forward:
    """Return the forward of a tower, made once for each tower of a process.

    Compiling takes a C++ compiler, and half a minute; what was compiled before is found again in torch's own cache.
    With bfloat16, torch's autocast decides what is computed in it; parameters, gradients and users keep their type.

    Raises
    ------
    ValueError
        If it is to be compiled, and the machine has no C++ compiler.
    """
    made = _MADE.setdefault(tower, {})
    if (how := (compiled, precision)) not in made:
        forward = _compiled(tower) if compiled else tower
        made[how] = _halved(forward) if precision == "bfloat16" else forward
        if compiled:
            _warm_up(made[how], tower, config)
    return made[how]


def _compiled(tower: Tower) -> Forward:
    if not any(map(which, _COMPILERS)):
        raise ValueError("compiled = true takes a C++ compiler: install g++, or set compiled = false")
    fast = torch.compile(tower, dynamic=True)

    def call(history: Tensor, mask: Tensor) -> Tensor:
        # A dimension of 1 has kernels of its own, and is rare.
        return cast(Tensor, (fast if min(mask.shape) > 1 else tower)(history, mask))

    return call


def _halved(forward: Forward) -> Forward:
    def call(history: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(history.device.type, torch.bfloat16):
            return forward(history, mask).to(history.dtype)

    return call


def _warm_up(forward: Forward, tower: Tower, config: TowerConfig) -> None:
    """Compile for histories that fill all places, and for shorter ones: towers may treat them apart."""
    for length in (config.history_length, config.history_length // 2 + 1):
        history = torch.zeros(_USERS, length, config.dimension).to(next(tower.parameters())).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            found = forward(history, torch.ones(_USERS, length, dtype=torch.bool, device=history.device))
            torch.autograd.grad(found.sum(), [history, *tower.parameters()], allow_unused=True)
