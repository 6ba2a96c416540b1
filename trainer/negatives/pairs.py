"""Batches of cells (i, j) of a label matrix: the samplings whose bias pointwise losses must take out.

Source: Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling in Similarity Learning with Two-Tower Models",
section 3.2 and appendix B (naive, cross, in-batch) and appendix F (two samples, for Sogram).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cells", "Positives", "cross", "in_batch", "naive", "two_samples"]


class Cells(NamedTuple):
    """Sampled cells: pairs of `rows` and `cols`, or the grid of all their combinations.

    `log_density` tells for every cell, (s,) or (rows, cols) of a grid, how likely the cell that stands there was to.
    """

    rows: Tensor
    cols: Tensor
    log_density: Tensor


@dataclass(frozen=True)
class Positives:
    """The positive pairs of an m x n label matrix.

    Parameters
    ----------
    rows, cols
        Where the positives stand, (P,), int64, every pair once.
    shape
        Rows m and columns n of the matrix.
    """

    rows: Tensor
    cols: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        """Refuse no pairs, pairs outside the matrix and pairs that are given twice."""
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

    @cached_property
    def row_count(self) -> Tensor:
        """Numbers of positives by row, (m,)."""
        return torch.bincount(self.rows, minlength=self.shape[0])

    @cached_property
    def col_count(self) -> Tensor:
        """Numbers of positives by column, (n,)."""
        return torch.bincount(self.cols, minlength=self.shape[1])

    def labels(self, rows: Tensor, cols: Tensor) -> Tensor:
        """Tell which cells are positive; `rows` and `cols` are broadcast, as in ``labels(rows[:, None], cols)``."""
        wanted = rows * self.shape[1] + cols
        place = torch.searchsorted(self._cells, wanted).clamp(max=len(self) - 1)
        return self._cells[place] == wanted

    @cached_property
    def _cells(self) -> Tensor:
        """Cell numbers of the positives, ascending."""
        return (self.rows * self.shape[1] + self.cols).sort().values


def naive(positives: Positives, size: int, generator: torch.Generator) -> Cells:
    """Draw `size` cells uniformly, with replacement, as pairs (equation 20): each with probability 1 / (m n)."""
    rows, cols = (_uniform(side, size, generator, positives) for side in positives.shape)
    return Cells(rows, cols, _constant(positives, rows))


def cross(positives: Positives, sizes: tuple[int, int], generator: torch.Generator) -> Cells:
    """Draw rows and columns uniformly, with replacement, and take their grid (equation 21).

    Every place of the grid holds each cell with probability 1 / (m n).
    """
    pairs = zip(positives.shape, sizes, strict=True)
    rows, cols = (_uniform(side, size, generator, positives) for side, size in pairs)
    return Cells(rows, cols, _constant(positives, torch.empty(len(rows), len(cols), device=rows.device)))


def in_batch(positives: Positives, size: int, generator: torch.Generator) -> Cells:
    """Draw `size` positives without replacement and take the grid of their rows and columns (equation 23).

    Place (a, a) holds each positive with probability 1 / P. Place (a, b) off the diagonal holds the cell (i, j) with
    probability (r_i c_j - Y_ij) / (P (P - 1)): of the r_i c_j ways to choose a positive of row i for a and one of
    column j for b, a positive (i, j) cannot be chosen for both. Cells without a positive in their row or column never
    come up.

    Parameters
    ----------
    positives
        The label matrix.
    size
        Positives to draw, from 1 to P.
    generator
        Source of randomness, on the CPU.

    Raises
    ------
    ValueError
        For a size outside [1, P].
    """
    chosen = _subset(positives, size, generator)
    rows, cols = positives.rows[chosen], positives.cols[chosen]
    ways = torch.outer(positives.row_count[rows], positives.col_count[cols]).double()
    ways = ways - positives.labels(rows[:, None], cols).double()
    density = ways / max(len(positives) * (len(positives) - 1), 1)
    density.fill_diagonal_(1 / len(positives))
    return Cells(rows, cols, density.log())


def two_samples(positives: Positives, sizes: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Cells]:
    """Draw two samples of positives, each without replacement, and take the rows of one and the columns of the other.

    Place (a, b) holds the cell (i, j) with probability r_i c_j / P^2, wherever it is: this is the sampling of Sogram
    (equation 34).

    Returns
    -------
    tuple
        The columns of the first sample, (n1,), which make positives of its rows, and the grid (n1, n2).
    """
    first, second = (_subset(positives, size, generator) for size in sizes)
    rows, cols = positives.rows[first], positives.cols[second]
    ways = torch.outer(positives.row_count[rows], positives.col_count[cols]).double()
    return positives.cols[first], Cells(rows, cols, ways.log() - 2 * math.log(len(positives)))


def _uniform(side: int, size: int, generator: torch.Generator, positives: Positives) -> Tensor:
    return torch.randint(side, (size,), generator=generator).to(positives.rows.device)


def _constant(positives: Positives, like: Tensor) -> Tensor:
    return torch.full_like(like, -math.log(math.prod(positives.shape)), dtype=torch.float64)


def _subset(positives: Positives, size: int, generator: torch.Generator) -> Tensor:
    if not 1 <= size <= len(positives):
        raise ValueError(f"size must be from 1 to the {len(positives)} positives there are, got {size}")
    return torch.randperm(len(positives), generator=generator)[:size].to(positives.rows.device)
