"""User towers and the similarity of their output to item vectors.

An item's vector is its embedding with what its features add (`weir.trainer.towers.features`), normalised where the
similarity is a cosine; user towers read the same vectors, so an item that was never a positive but occurs in histories
has a meaning too.
"""

from pkgutil import resolve_name
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from weir.trainer.config import TowerConfig
from weir.trainer.tower_config import TOWERS
from weir.trainer.towers.tower import Tower

__all__ = ["Tower", "build_tower", "project", "read_out"]


def build_tower(config: TowerConfig, seed: int) -> Tower:
    """Return the user tower that `config` names, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower: Tower = resolve_name(f"weir.trainer.towers.{TOWERS[config.kind].path}")(config)
        return tower


def read_out(tower: Tower, history: Tensor, mask: Tensor, *, every: bool) -> Tensor:
    """Return user vectors (B, d) after histories (B, L, d), or after each of their positions as well (B * L, d).

    Raises
    ------
    ValueError
        If `every` position is asked of a tower that reads no histories.
    """
    if not every:
        return cast(Tensor, tower(history, mask))
    return tower.every_position(history, mask).flatten(0, 1)


def project(vectors: Tensor, config: TowerConfig) -> Tensor:
    """Return vectors (n, d) as the search compares them: of length 1 where the similarity is a cosine."""
    return functional.normalize(vectors, dim=-1) if config.normalised else vectors
