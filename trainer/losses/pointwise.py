"""Pointwise losses over the whole in-batch grid, with corrections for its sampling bias.

The objective (equation 5) is the mean over all cells (i, j) of the label matrix of l+ for positives and l- for others.

Source: Liu, Lin and Lin, "Examining the Bias of In-Batch Sampling in Similarity Learning with Two-Tower Models".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.losses import _numerics as checks
from weir.trainer.losses._numerics import softplus, widen
from weir.trainer.losses.inputs import LossInputs
from weir.trainer.settings.trainer import TrainerConfig

OBJECTIVES = ("in_batch", "popularity", "pos_neg", "unbiased", "unbiased_omega")
LINKS = ("square", "logistic")


def pointwise_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the loss of `loss.kind = pointwise`, the same number for all b rows, (b,)."""
    settings = config.loss
    grid = step.users @ step.positives.T / step.temperature
    if settings.needs_labels:
        scores = grid if settings.sampling == "cross" else step.pos
        return pointwise_labelled(scores, step.given("labels"), link=settings.link).expand(len(grid))
    population = step.given("population")
    total = pointwise_in_batch(
        grid,
        row_count=population.row_count,
        col_count=population.column_count,
        num_positives=population.positives,
        shape=population.shape,
        objective=settings.objective,
        link=settings.link,
        omega=settings.omega,
    )
    return total.expand(len(grid))


def sogram_of(step: LossInputs, config: TrainerConfig) -> Tensor:
    """Return the loss of `loss.kind = sogram`, the same number for all b rows, (b,).

    The first half of the batch gives the pairs, the second half the items.
    """
    population, half = step.given("population"), len(step.users) // 2
    total = sogram(
        step.pos[:half],
        step.users[:half] @ step.positives[half:].T / step.temperature,
        row_count=population.row_count[:half],
        col_count=population.column_count[half:],
        num_positives=population.positives,
        shape=population.shape,
        link=config.loss.link,
    )
    return total.expand(len(step.users))


def pointwise_in_batch(
    scores: Tensor,
    *,
    row_count: Tensor,
    col_count: Tensor,
    num_positives: float,
    shape: tuple[int, int],
    objective: str,
    link: str = "logistic",
    omega: float = 1.0,
) -> Tensor:
    """Loss over the n x n grid of n sampled positives: the diagonal is positive, all other cells count as negative.

    Expectation of each objective over uniform subsets of n positives, drawn without replacement, with the equation of
    the loss and that of its expectation:

    ==================  ========  ===========================================================================
    objective           equation  expected loss
    ==================  ========  ===========================================================================
    ``in_batch``        28        (13): popular pairs over-weighted, and the balance moves with the batch size
    ``popularity``      26        (15): popular pairs over-weighted
    ``pos_neg``         27        (16): the balance of l+ and l- moves with the batch size
    ``unbiased``        17        (5): the mean over the full label matrix
    ``unbiased_omega``  25        (19): the same with l- weighted by omega
    ==================  ========  ===========================================================================

    Parameters
    ----------
    scores
        scores[a, b] is the similarity of the row of pair a and the column of pair b, (n, n). Entities that occur in
        several sampled pairs stay repeated.
    row_count, col_count
        Numbers of positives in the row of pair a and in the column of pair b of the full label matrix, (n,), of any
        real dtype (estimates are fine), above 0.
    num_positives
        Number of positives in the full label matrix, at least n.
    shape
        Rows and columns of the full label matrix.
    objective
        A name of the table.
    link
        ``"square"``: l+ = (1 - y)^2 / 2, l- = y^2 / 2. ``"logistic"``: l+ = softplus(-y), l- = softplus(y).
    omega
        Weight of l- in ``"unbiased_omega"``, at least 0. Not used by the other objectives.

    Returns
    -------
    Tensor
        One loss for the batch, of shape (), in the dtype of `scores`. It may be negative for a single batch if the
        objective subtracts.

    Raises
    ------
    ValueError
        For an unknown objective or link, wrong shapes, counts that are not above 0, fewer positives than n, and n = 1
        (or a single positive) where the formula divides by n - 1 (or by num_positives - 1).
    """
    checks.check_choice("objective", objective, OBJECTIVES)
    checks.check_logits("n+ m", scores=scores)
    size = scores.shape[0]
    checks.check_shape("scores", scores, n=None, m=size)
    _check_population(row_count, col_count, num_positives, shape, (size, size))
    checks.check_non_negative("omega", omega)
    (wide,) = widen(scores)
    grid = _grid_weights(objective, size, num_positives, omega)
    as_positive, as_negative = _link_losses(wide, link)
    inverse = _inverse_popularity(row_count, col_count, wide) if grid.by_popularity else torch.ones_like(wide)
    total = (
        as_positive.diagonal().sum()
        + grid.everywhere * (inverse * as_negative).sum()
        - ((grid.diagonal_share * inverse.diagonal() + grid.diagonal) * as_negative.diagonal()).sum()
    )
    return (total * (num_positives / size / (shape[0] * shape[1]))).to(scores.dtype)


@dataclass(frozen=True, slots=True)
class _GridWeights:
    """Weights of l- in sum l+ + everywhere * sum_ab u l- - sum_aa (diagonal_share * u + diagonal) l-.

    u is 1 / (row_count col_count) if `by_popularity`, else 1.
    """

    by_popularity: bool
    everywhere: float
    diagonal_share: float
    diagonal: float


def _grid_weights(objective: str, size: int, num_positives: float, omega: float) -> _GridWeights:
    """Return the weights of an objective; raises `ValueError` for too few positives."""
    if objective == "in_batch":
        return _GridWeights(by_popularity=False, everywhere=1.0, diagonal_share=0.0, diagonal=1.0)
    if objective == "pos_neg":
        if num_positives <= 1:
            raise ValueError(f"num_positives must be above 1 for objective='pos_neg', got {num_positives}")
        rest = num_positives - 1
        share = (num_positives - size) / rest
        return _GridWeights(by_popularity=True, everywhere=1.0, diagonal_share=share, diagonal=(size - 1) / rest)
    if size == 1:
        raise ValueError(f"scores must hold at least 2 positives for objective={objective!r}, got n = 1")
    ratio = (num_positives - 1) / (size - 1)
    if objective == "popularity":
        return _GridWeights(by_popularity=False, everywhere=ratio, diagonal_share=0.0, diagonal=ratio)
    weight = omega if objective == "unbiased_omega" else 1.0
    share = weight * (num_positives - size) / (size - 1)
    return _GridWeights(by_popularity=True, everywhere=weight * ratio, diagonal_share=share, diagonal=weight)


def pointwise_labelled(scores: Tensor, labels: Tensor, *, link: str = "logistic") -> Tensor:
    """Mean over sampled cells of the label matrix: l+ where the cell is a positive, and l- elsewhere.

    With cells drawn uniformly, as pairs or as a grid (naive and cross sampling, equations 20 and 21), the expectation
    is the mean over the full label matrix (equation 5). No correction is needed, but few sampled cells are positives.

    Parameters
    ----------
    scores
        Similarities of the cells, of any shape with at least one.
    labels
        Booleans of the same shape: True where the cell is positive.
    link
        As for `pointwise_in_batch`.

    Returns
    -------
    Tensor
        One loss, of shape (), in the dtype of `scores`.

    Raises
    ------
    ValueError
        For an unknown link, wrong dtypes, no cells, or shapes that differ.
    """
    checks.check_logits(None, scores=scores)
    if labels.shape != scores.shape or labels.dtype != torch.bool or not scores.numel():
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"labels must be booleans of the shape of scores, {tuple(scores.shape)}, not empty; got {got}")
    (wide,) = widen(scores)
    as_positive, as_negative = _link_losses(wide, link)
    return torch.where(labels, as_positive, as_negative).mean().to(scores.dtype)


def sogram(
    pos_scores: Tensor,
    cross_scores: Tensor,
    *,
    row_count: Tensor,
    col_count: Tensor,
    num_positives: float,
    shape: tuple[int, int],
    link: str = "logistic",
) -> Tensor:
    """Unbiased loss from two independent samples of the positives (equation 34; Krichene et al., 2019).

    |O| / (m n) (mean over the first sample of l+ - l-, plus |O| times the mean over the grid of
    l- / (row_count col_count)). Needs the vectors of two samples; `pointwise_in_batch` needs one sample.

    Parameters
    ----------
    pos_scores
        Similarities of the n1 pairs of the first sample, (n1,).
    cross_scores
        Similarities of the rows of the first and the columns of the second sample, (n1, n2).
    row_count
        Numbers of positives in the rows of the first sample, (n1,), above 0.
    col_count
        Numbers of positives in the columns of the second sample, (n2,), above 0.
    num_positives, shape, link
        As for `pointwise_in_batch`; num_positives is at least the larger of n1 and n2.

    Returns
    -------
    Tensor
        One loss for the batch, of shape (), in the dtype of `pos_scores`.

    Raises
    ------
    ValueError
        For an unknown link, wrong shapes or dtypes, or counts that are not above 0.
    """
    checks.check_logits("n1, n1+ n2+", pos_scores=pos_scores, cross_scores=cross_scores)
    first, second = cross_scores.shape
    _check_population(row_count, col_count, num_positives, shape, (first, second))
    dtype = pos_scores.dtype
    pos_scores, cross_scores = widen(pos_scores, cross_scores)
    as_positive, as_negative = _link_losses(pos_scores, link)
    _, cross_negative = _link_losses(cross_scores, link)
    grid = (cross_negative * _inverse_popularity(row_count, col_count, cross_scores)).mean()
    total = (as_positive - as_negative).mean() + num_positives * grid
    return (total * (num_positives / (shape[0] * shape[1]))).to(dtype)


def _check_population(
    row_count: Tensor, col_count: Tensor, num_positives: float, shape: tuple[int, int], sizes: tuple[int, int]
) -> None:
    """Raise `ValueError` for counts of wrong shapes or values, and for a population smaller than the sample."""
    for name, count, size in (("row_count", row_count, sizes[0]), ("col_count", col_count, sizes[1])):
        checks.check_shape(name, count, n=size)
        bad = ~(count > 0) | ~count.isfinite()
        if bool(bad.any()):
            raise ValueError(f"{name} must be finite and above 0, got {count[bad][0].item()}")
    if not num_positives >= max(sizes):
        raise ValueError(f"num_positives must be at least the sample size {max(sizes)}, got {num_positives}")
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"shape must be (rows, columns), each at least 1, got {shape}")


def _inverse_popularity(row_count: Tensor, col_count: Tensor, like: Tensor) -> Tensor:
    """Return 1 / (row_count[a] col_count[b]) in the dtype of `like`."""
    return torch.outer(row_count.to(like.dtype).reciprocal(), col_count.to(like.dtype).reciprocal())


def _link_losses(scores: Tensor, link: str) -> tuple[Tensor, Tensor]:
    """Return l+ and l- for every score."""
    checks.check_choice("link", link, LINKS)
    if link == "square":
        return (1.0 - scores).square() / 2, scores.square() / 2
    return softplus(-scores), softplus(scores)
