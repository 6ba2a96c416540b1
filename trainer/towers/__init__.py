"""User towers and the similarity of their output to item vectors.

The item tower is the embedding itself, normalised where the similarity is a cosine; user towers read the same
embeddings, so an item that was never a positive but stands in histories has a meaning too.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import TowerConfig
from trainer.towers.matrix_factorisation import MatrixFactorisation
from trainer.towers.mean_pooling import MeanPooling
from trainer.towers.sasrec import SasRec

__all__ = ["MatrixFactorisation", "MeanPooling", "SasRec", "build_tower", "project"]


def build_tower(config: TowerConfig, seed: int) -> nn.Module:
    """Return the user tower that `config` names, with parameters drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.kind == "mean_pooling":
            return MeanPooling(dimension=config.dimension, layers=config.layers, dropout=config.dropout)
        return SasRec(
            dimension=config.dimension,
            history_length=config.history_length,
            layers=config.layers,
            heads=config.heads,
            dropout=config.dropout,
        )


def project(vectors: Tensor, config: TowerConfig) -> Tensor:
    """Return vectors (n, d) as the search compares them: of length 1 where the similarity is a cosine."""
    return functional.normalize(vectors, dim=-1) if config.normalised else vectors
