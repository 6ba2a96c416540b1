"""Sampling of cells (i, j) from a label matrix of users and items, positive or not, for pointwise losses.

Source: Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling in Similarity Learning with Two-Tower Models",
section 3.2 and appendix B (naive and cross sampling).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cells", "LabelMatrix", "cross", "naive"]


class Cells(NamedTuple):
    """Sampled cells of a label matrix: pairs of `rows` and `cols` (s,), or the grid of rows (r,) and columns (c,).

    `log_density`, (s,) or (r, c), is the log-probability that sampling puts this cell at this position.
    """

    rows: Tensor
    cols: Tensor
    log_density: Tensor


@dataclass(frozen=True)
class LabelMatrix:
    """An m x n label matrix, given by its positive pairs.

    Parameters
    ----------
    rows, cols
        Rows and columns of the positives, (P,), int64, every pair once.
    shape
        Rows m and columns n of the matrix.
    """

    rows: Tensor
    cols: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        """Raise `ValueError` for an empty list, pairs outside the matrix, and repeated pairs."""
        if self.rows.shape != self.cols.shape or self.rows.ndim != 1 or not len(self.rows):
            raise ValueError(
                f"rows and cols must be (P,), P >= 1, got {tuple(self.rows.shape)}, {tuple(self.cols.shape)}"
            )
        for name, value, size in (("rows", self.rows, self.shape[0]), ("cols", self.cols, self.shape[1])):
            if int(value.min()) < 0 or int(value.max()) >= size:
                raise ValueError(f"{name} must lie in [0, {size}), got {int(value.min())} to {int(value.max())}")
        if again := len(self) - len(torch.unique(self._cells)):
            raise ValueError(f"rows and cols must name every positive once, got {again} repetitions; drop them first")

    def __len__(self) -> int:
        return len(self.rows)

    def labels(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Return booleans, True for positives; `rows` and `cols` broadcast, as in ``labels(rows[:, None], cols)``."""
        cells = rows * self.shape[1] + cols
        place = torch.searchsorted(self._cells, cells).clamp(max=len(self) - 1)
        return self._cells[place] == cells

    @cached_property
    def _cells(self) -> Tensor:
        """Cell numbers of the positives, ascending."""
        return (self.rows * self.shape[1] + self.cols).sort().values


def naive(matrix: LabelMatrix, size: int, generator: torch.Generator) -> Cells:
    """Draw `size` cells uniformly, with replacement, as pairs (equation 20): each with probability 1 / (m n)."""
    rows, cols = (_uniform(side, size, generator, matrix) for side in matrix.shape)
    return Cells(rows, cols, _constant(matrix, rows))


def cross(matrix: LabelMatrix, sizes: tuple[int, int], generator: torch.Generator) -> Cells:
    """Draw rows and columns uniformly, with replacement, and return the grid of all their cells (equation 21).

    Every position of the grid holds each cell with probability 1 / (m n).
    """
    pairs = zip(matrix.shape, sizes, strict=True)
    rows, cols = (_uniform(side, size, generator, matrix) for side, size in pairs)
    return Cells(rows, cols, _constant(matrix, torch.empty(len(rows), len(cols), device=rows.device)))


def _uniform(side: int, size: int, generator: torch.Generator, matrix: LabelMatrix) -> Tensor:
    """Draw `size` indices in [0, side) with replacement, on the device of the matrix."""
    return torch.randint(side, (size,), generator=generator).to(matrix.rows.device)


def _constant(matrix: LabelMatrix, like: Tensor) -> Tensor:
    """Return -log(m n), the log-density of every cell under uniform sampling, in the shape of `like`, float64."""
    return torch.full_like(like, -math.log(math.prod(matrix.shape)), dtype=torch.float64)
