"""In-batch and Sogram sampling as cells of a label matrix: the reference of what a step does with its batch.

Source: Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling in Similarity Learning with Two-Tower Models",
section 3.2 and appendices B and F.
"""

import math

import torch
from torch import Tensor

from weir.trainer.negatives.label_matrix import Cells, LabelMatrix


def row_count(matrix: LabelMatrix) -> Tensor:
    """Numbers of positives by row, (m,)."""
    return torch.bincount(matrix.rows, minlength=matrix.shape[0])


def col_count(matrix: LabelMatrix) -> Tensor:
    """Numbers of positives by column, (n,)."""
    return torch.bincount(matrix.cols, minlength=matrix.shape[1])


def in_batch(matrix: LabelMatrix, size: int, generator: torch.Generator) -> Cells:
    """Draw `size` positives without replacement and take the grid of their rows and columns (equation 23).

    Place (a, a) holds each positive with probability 1 / P. Place (a, b) off the diagonal holds the cell (i, j) with
    probability (r_i c_j - Y_ij) / (P (P - 1)): of the r_i c_j ways to choose a positive of row i for a and one of
    column j for b, a positive (i, j) cannot be chosen for both. Cells without a positive in their row or column never
    come up.

    Parameters
    ----------
    matrix
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
    chosen = _subset(matrix, size, generator)
    rows, cols = matrix.rows[chosen], matrix.cols[chosen]
    ways = torch.outer(row_count(matrix)[rows], col_count(matrix)[cols]).double()
    ways = ways - matrix.labels(rows[:, None], cols).double()
    density = ways / max(len(matrix) * (len(matrix) - 1), 1)
    density.fill_diagonal_(1 / len(matrix))
    return Cells(rows, cols, density.log())


def two_samples(matrix: LabelMatrix, sizes: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Cells]:
    """Draw two samples of positives, each without replacement, and take the rows of one and the columns of the other.

    Place (a, b) holds the cell (i, j) with probability r_i c_j / P^2, wherever it is: this is the sampling of Sogram
    (equation 34).

    Returns
    -------
    tuple
        The columns of the first sample, (n1,), which make positives of its rows, and the grid (n1, n2).
    """
    first, second = (_subset(matrix, size, generator) for size in sizes)
    rows, cols = matrix.rows[first], matrix.cols[second]
    ways = torch.outer(row_count(matrix)[rows], col_count(matrix)[cols]).double()
    return matrix.cols[first], Cells(rows, cols, ways.log() - 2 * math.log(len(matrix)))


def _subset(matrix: LabelMatrix, size: int, generator: torch.Generator) -> Tensor:
    if not 1 <= size <= len(matrix):
        raise ValueError(f"size must be from 1 to the {len(matrix)} positives there are, got {size}")
    return torch.randperm(len(matrix), generator=generator)[:size].to(matrix.rows.device)
