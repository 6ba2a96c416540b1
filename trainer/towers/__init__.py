"""User towers and the similarity of their output to item vectors.

An item's vector is its embedding with what its features add (`trainer.towers.item`), normalised where the similarity
is a cosine; user towers read the same vectors, so an item that was never a positive but stands in histories has a
meaning too.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import TowerConfig
from trainer.towers.matrix_factorisation import MatrixFactorisation
from trainer.towers.mean_pooling import MeanPooling
from trainer.towers.sasrec import SasRec

__all__ = ["MatrixFactorisation", "MeanPooling", "SasRec", "build_tower", "project", "read_out"]


def build_tower(config: TowerConfig, seed: int) -> nn.Module:
    """Return the user tower that `config` names, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.kind in {"matrix_factorisation", "lightgcn"}:
            return MatrixFactorisation()
        if config.kind == "mean_pooling":
            return MeanPooling(
                dimension=config.dimension, layers=config.layers, dropout=config.dropout, expansion=config.expansion
            )
        return SasRec(
            dimension=config.dimension,
            history_length=config.history_length,
            layers=config.layers,
            heads=config.heads,
            dropout=config.dropout,
            expansion=config.expansion,
        )


def read_out(tower: nn.Module, history: Tensor, mask: Tensor, *, every: bool) -> Tensor:
    """Return user vectors (B, d) after histories (B, L, d), or after each of their positions as well (B * L, d)."""
    if not every:
        return cast(Tensor, tower(history, mask))
    if not isinstance(tower, MeanPooling | SasRec):
        raise ValueError(f"{type(tower).__name__} reads no sequences; allowed are sasrec and mean_pooling")
    return tower.every_position(history, mask).flatten(0, 1)


def project(vectors: Tensor, config: TowerConfig) -> Tensor:
    """Return vectors (n, d) as the search compares them: of length 1 where the similarity is a cosine."""
    return functional.normalize(vectors, dim=-1) if config.normalised else vectors
