"""User towers and the similarity of their output to item vectors.

An item's vector is its embedding plus the vectors of its features (`weir.trainer.towers.features`), normalised where
the similarity is a cosine. User towers read the same vectors, so an item that occurs in histories but was never a
positive is trained too.
"""

from pkgutil import resolve_name
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.settings.towers import TOWERS
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.towers.tower import Tower

__all__ = ["Tower", "build_tower", "project", "read_out"]


def build_tower(config: TowerConfig, seed: int) -> Tower:
    """Return the user tower of kind `config.kind`, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower: Tower = resolve_name(f"weir.trainer.towers.{TOWERS[config.kind].path}")(config)
        return tower


def read_out(tower: Tower, history: Tensor, mask: Tensor, *, every: bool) -> Tensor:
    """Return user vectors (B, d) for histories (B, L, d) or, with `every`, the vectors after each position (B * L, d).

    Raises
    ------
    ValueError
        If `every` is set for a tower that reads no sequences.
    """
    if not every:
        return cast(Tensor, tower(history, mask))
    return tower.every_position(history, mask).flatten(0, 1)


def project(vectors: Tensor, config: TowerConfig) -> Tensor:
    """Return vectors (n, d) as the search compares them: normalised to length 1 where the similarity is a cosine."""
    return functional.normalize(vectors, dim=-1) if config.normalised else vectors
