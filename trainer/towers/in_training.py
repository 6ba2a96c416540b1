"""Forward pass of a user tower during training: plain, compiled by `torch.compile`, in bfloat16, or both.

On a CPU, a tower that needs no (B, L, d) tensor reads histories as they are; other towers get them in chunks.

Kernels depend on the shapes that they are compiled for. A restarted run must use the same kernels as the killed one, so
they are always compiled for the same example shapes, whatever batch comes first, and serve all other shapes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from shutil import which
from typing import Final, Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from weir.trainer.settings.towers import TowerConfig
from weir.trainer.towers.tower import History, Tower

__all__ = ["Forward", "Precision", "in_parts", "in_training"]

Forward = Callable[[History, Tensor], Tensor]
"""Maps histories and a mask (B, L) to users (B, d), as `Tower.read`."""

_Dense = Callable[[Tensor, Tensor], Tensor]
"""Maps item vectors (B, L, d) and a mask (B, L) to users (B, d), as `Tower.forward`."""

Precision = Literal["float32", "bfloat16"]

_AT_ONCE: Final = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Numbers of a tower's input per chunk. On a CPU 8 MB: larger tensors leave the caches, and the allocator returns them
to the system after each use. A GPU would wait for its next instruction with small chunks."""

_USERS: Final = 16
_COMPILERS: Final = ("g++", "clang++")

_BUILT: Final = WeakKeyDictionary[Tower, dict[tuple[bool, Precision], Forward]]()


def in_training(tower: Tower, config: TowerConfig, *, compiled: bool, precision: Precision = "float32") -> Forward:
    """Return the forward pass of a tower; compiled and bfloat16 variants are built once per tower.

    Compiling needs a C++ compiler and half a minute; torch caches the result on disk.
    With bfloat16, torch's autocast chooses the operations; parameters, gradients and users keep their type.

    Raises
    ------
    ValueError
        If `compiled` is set and the machine has no C++ compiler.
    """
    if not compiled and precision == "float32":
        return partial(_as_it_is, tower)
    built = _BUILT.setdefault(tower, {})
    if (variant := (compiled, precision)) not in built:
        dense = _compiled(tower) if compiled else tower
        dense = _halved(dense) if precision == "bfloat16" else dense
        if compiled:
            _warm_up(dense, tower, config)
        built[variant] = _in_parts(dense)
    return built[variant]


def in_parts(history: History, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the item vectors (b, L, d) and the mask (b, L) of chunks of histories, in order."""
    length, dimension = history.shape[1:]
    count = max(_AT_ONCE[mask.device.type] // (length * dimension), 1)
    for part, some in zip(history.split(count), torch.split(mask, count), strict=True):
        yield part.every(), some


def _as_it_is(tower: Tower, history: History, mask: Tensor) -> Tensor:
    """Run the tower on histories as they are if it can read them on a CPU, else in chunks."""
    if tower.reads_items and not mask.is_cuda:
        return tower.read(history, mask)
    return _in_parts(tower)(history, mask)


def _in_parts(dense: _Dense) -> Forward:
    """Return a forward pass that calls `dense` for chunks of histories."""

    def call(history: History, mask: Tensor) -> Tensor:
        return torch.cat([dense(*part) for part in in_parts(history, mask)])

    return call


def _compiled(tower: Tower) -> _Dense:
    """Return the compiled tower; raises `ValueError` without a C++ compiler."""
    if not any(map(which, _COMPILERS)):
        raise ValueError("compiled = true takes a C++ compiler: install g++, or set compiled = false")
    fast = torch.compile(tower, dynamic=True)

    def call(history: Tensor, mask: Tensor) -> Tensor:
        # Torch compiles separate kernels for a dimension of 1, which is rare.
        return cast(Tensor, (fast if min(mask.shape) > 1 else tower)(history, mask))

    return call


def _halved(forward: _Dense) -> _Dense:
    """Return a forward pass with operations in bfloat16 where autocast chooses it."""

    def call(history: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast(history.device.type, torch.bfloat16):
            return forward(history, mask).to(history.dtype)

    return call


def _warm_up(forward: _Dense, tower: Tower, config: TowerConfig) -> None:
    """Compile for histories of full length and for shorter ones: towers may branch on the length."""
    for length in (config.history_length, config.history_length // 2 + 1):
        history = torch.zeros(_USERS, length, config.dimension).to(next(tower.parameters())).requires_grad_()
        with torch.random.fork_rng(devices=[]):
            users = forward(history, torch.ones(_USERS, length, dtype=torch.bool, device=history.device))
            torch.autograd.grad(users.sum(), [history, *tower.parameters()], allow_unused=True)
