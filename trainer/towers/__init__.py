"""User towers and the similarity of their output to item vectors.

An item's vector is its embedding with what its features add (`trainer.towers.item`), normalised where the similarity
is a cosine; user towers read the same vectors, so an item that was never a positive but occurs in histories has a
meaning too.
"""

from typing import Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config import TowerConfig, TowerKind
from trainer.towers.esasrec import ESasRec
from trainer.towers.matrix_factorisation import MatrixFactorisation
from trainer.towers.mean_pooling import MeanPooling
from trainer.towers.sasrec import SasRec
from trainer.towers.tower import Tower

__all__ = [
    "TOWERS",
    "ESasRec",
    "MatrixFactorisation",
    "MeanPooling",
    "SasRec",
    "Tower",
    "build_tower",
    "kinds",
    "project",
    "read_out",
]

TOWERS: Final[dict[TowerKind, type[Tower]]] = {
    "sasrec": SasRec,
    "esasrec": ESasRec,
    "mean_pooling": MeanPooling,
    "matrix_factorisation": MatrixFactorisation,
    "lightgcn": MatrixFactorisation,  # of vectors that `trainer.towers.lightgcn` has propagated
}


def kinds(*, knows_users: bool) -> list[TowerKind]:
    """Return the kinds of towers that know users by id, or of those that read histories."""
    return [kind for kind, tower in TOWERS.items() if tower.knows_users == knows_users]


def build_tower(config: TowerConfig, seed: int) -> Tower:
    """Return the user tower that `config` names, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TOWERS[config.kind](config)


def read_out(tower: Tower, history: Tensor, mask: Tensor, *, every: bool) -> Tensor:
    """Return user vectors (B, d) after histories (B, L, d), or after each of their positions as well (B * L, d).

    Raises
    ------
    ValueError
        If `every` position is asked of a tower that reads no histories.
    """
    if not every:
        return cast(Tensor, tower(history, mask))
    if tower.knows_users:
        allowed = ", ".join(kinds(knows_users=False))
        raise ValueError(f"{type(tower).__name__} reads no sequences; allowed are {allowed}")
    return tower.every_position(history, mask).flatten(0, 1)


def project(vectors: Tensor, config: TowerConfig) -> Tensor:
    """Return vectors (n, d) as the search compares them: of length 1 where the similarity is a cosine."""
    return functional.normalize(vectors, dim=-1) if config.normalised else vectors
