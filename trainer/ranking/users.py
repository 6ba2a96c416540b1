"""User vectors from histories, as every evaluation scores them."""

from torch import Tensor, nn
from torch.nn import functional

from trainer.config import TowerConfig
from trainer.items.table import PADDING
from trainer.towers import project

__all__ = ["user_vectors"]


def user_vectors(tower: nn.Module, config: TowerConfig, vectors: Tensor, histories: Tensor) -> Tensor:
    """Return the vectors (n, d) of users as the search compares them.

    Parameters
    ----------
    tower
        The user tower, in evaluation mode.
    vectors
        What the tower reads, by table row, (capacity, d).
    histories
        Table rows, (n, L), padded with `PADDING`.
    """
    return project(tower(functional.embedding(histories, vectors), histories != PADDING), config)
