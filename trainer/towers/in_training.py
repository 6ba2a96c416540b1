"""A user tower as steps run it: as it is, compiled by `torch.compile`, with products of bfloat16, or both.

On a CPU, a tower that needs no vector of each place gets none. All others read some histories at a time.

Kernels depend on the shapes that they are compiled for. A run that was killed must go on with the same ones, so they
are always compiled for the same shapes, whatever comes first, and serve all others.
"""

from collections.abc import Callable, Iterator
from functools import partial
from shutil import which
from typing import Final, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weir.trainer.tower_config import TowerConfig
from weir.trainer.towers.history import History
from weir.trainer.towers.tower import Tower

__all__ = ["Forward", "Precision", "in_parts", "in_training"]

Forward = Callable[[History, Tensor], Tensor]
"""From histories and a mask (B, L) to users (B, d), as `Tower.read`."""

_Dense = Callable[[Tensor, Tensor], Tensor]
"""From item vectors (B, L, d) and a mask (B, L) to users (B, d), as `Tower.forward`."""

Precision = Literal["float32", "bfloat16"]

_AT_ONCE: Final = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Numbers of a tower's input that it reads at a time. On a CPU 8 MB: larger tensors leave the caches, and the allocator
gives them back to the system after each use. A GPU waits for its next instruction where it gets little at a time."""

_USERS: Final = 16
_COMPILERS: Final = ("g++", "clang++")

_MADE: Final = WeakKeyDictionary[Tower, dict[tuple[bool, Precision], Forward]]()


def in_training(tower: Tower, config: TowerConfig, *, compiled: bool, precision: Precision = "float32") -> Forward:
    """Return the forward of a tower; one that is compiled, or has other products, is made once for each tower.

    Compiling takes a C++ compiler, and half a minute; what was compiled before is found again in torch's own cache.
    With bfloat16, torch's autocast decides what is computed in it; parameters, gradients and users keep their type.

    Raises
    ------
    ValueError
        If it is to be compiled, and the machine has no C++ compiler.
    """
    if not compiled and precision == "float32":
        return partial(_as_it_is, tower)
    made = _MADE.setdefault(tower, {})
    if (how := (compiled, precision)) not in made:
        dense = _compiled(tower) if compiled else tower
        dense = _halved(dense) if precision == "bfloat16" else dense
        if compiled:
            _warm_up(dense, tower, config)
        made[how] = _in_parts(dense)
    return made[how]


def in_parts(history: History, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the vectors and the mask of those histories that are read at a time, one after another."""
    length, dimension = history.shape[1:]
    count = max(_AT_ONCE[mask.device.type] // (length * dimension), 1)
    for part, some in zip(history.split(count), torch.split(mask, count), strict=True):
        yield part.every(), some


def _as_it_is(tower: Tower, history: History, mask: Tensor) -> Tensor:
    if tower.reads_items and not mask.is_cuda:
        return tower.read(history, mask)
    return _in_parts(tower)(history, mask)


def _in_parts(dense: _Dense) -> Forward:
    def call(history: History, mask: Tensor) -> Tensor:
        return torch.cat([dense(*part) for part in in_parts(history, mask)])

    return call


def _compiled(tower: Tower) -> _Dense:
    if not any(map(which, _COMPILERS)):
        raise ValueError("compiled = true takes a C++ compiler: install g++, or set compiled = false")
    fast = torch.compile(tower, dynamic=True)

    def call(history: Tensor, mask: Tensor) -> Tensor:
        # A dimension of 1 has kernels of its own, and is rare.
        return cast(Tensor, (fast if min(mask.shape) > 1 else tower)(history, mask))

    return call


def _halved(forward: _Dense) -> _Dense:
    def call(history: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(history.device.type, torch.bfloat16):
            return forward(history, mask).to(history.dtype)

    return call


def _warm_up(forward: _Dense, tower: Tower, config: TowerConfig) -> None:
    """Compile for histories that fill all places, and for shorter ones: towers may treat them apart."""
    for length in (config.history_length, config.history_length // 2 + 1):
        history = torch.zeros(_USERS, length, config.dimension).to(next(tower.parameters())).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            found = forward(history, torch.ones(_USERS, length, dtype=torch.bool, device=history.device))
            torch.autograd.grad(found.sum(), [history, *tower.parameters()], allow_unused=True)
