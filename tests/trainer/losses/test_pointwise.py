"""Expectations over *every* subset of the positives of a 4 x 4 label matrix, against the paper's objectives."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]
Array = np.ndarray

LABELS = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]])
PAIRS = list(zip(*np.nonzero(LABELS), strict=True))
TOTAL = len(PAIRS)
ROW_COUNT, COL_COUNT = LABELS.sum(1), LABELS.sum(0)
POPULARITY = np.outer(ROW_COUNT, COL_COUNT)
SIZES = range(2, TOTAL + 1)
OMEGA = 0.3
LINKS = ("square", "logistic")


@pytest.fixture(scope="module")
def similarity() -> Array:
    return np.random.default_rng(7).normal(0.0, 1.5, (4, 4))


def link_losses(similarity: Array, link: str) -> tuple[Array, Array]:
    if link == "square":
        return (1 - similarity) ** 2 / 2, similarity**2 / 2
    return np.log(1 + np.exp(-similarity)), np.log(1 + np.exp(similarity))


def objective_value(similarity: Array, link: str, *, unlabelled: Array, missed: Array) -> float:
    """Mean over the matrix of l+ + missed * l- for the positives and unlabelled * l- for the others."""
    as_positive, as_negative = link_losses(similarity, link)
    return float(np.where(LABELS == 1, as_positive + missed * as_negative, unlabelled * as_negative).mean())


def expected_objective(name: str, similarity: Array, link: str, size: int) -> float:
    ones, balance = np.ones((4, 4)), (size - 1) / (TOTAL - 1)
    unlabelled, missed = {
        "unbiased": (ones, 0 * ones),  # (5)
        "unbiased_omega": (OMEGA * ones, 0 * ones),  # (19)
        "popularity": (POPULARITY, POPULARITY - 1),  # (15)
        "pos_neg": (balance * ones, 0 * ones),  # (16)
        "in_batch": (balance * POPULARITY, balance * (POPULARITY - 1)),  # (13), as rewritten in (14)
    }[name]
    return objective_value(similarity, link, unlabelled=unlabelled, missed=missed)


def batch_loss(similarity: Array, chosen: tuple[tuple[int, int], ...], objective: str, link: str) -> float:
    rows, cols = (np.array(side) for side in zip(*chosen, strict=True))
    value = losses.pointwise_in_batch(
        torch.from_numpy(similarity[np.ix_(rows, cols)]),
        row_count=torch.from_numpy(ROW_COUNT[rows]),
        col_count=torch.from_numpy(COL_COUNT[cols]),
        num_positives=TOTAL,
        shape=(4, 4),
        objective=objective,
        link=link,
        omega=OMEGA,
    )
    assert value.shape == ()
    return float(value)


def mean_over_subsets(similarity: Array, size: int, objective: str, link: str) -> float:
    return float(np.mean([batch_loss(similarity, chosen, objective, link) for chosen in combinations(PAIRS, size)]))


def test_the_label_matrix_fits_the_assumptions() -> None:
    assert (ROW_COUNT > 0).all()
    assert (COL_COUNT > 0).all()
    assert POPULARITY.max() > POPULARITY.min()
    assert TOTAL == 8


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("objective", ["unbiased", "unbiased_omega", "popularity", "pos_neg", "in_batch"])
def test_expectation_over_all_subsets(similarity: Array, size: int, objective: str, link: str) -> None:
    value = mean_over_subsets(similarity, size, objective, link)
    assert value == pytest.approx(expected_objective(objective, similarity, link, size), rel=0, abs=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", SIZES)
def test_in_batch_is_biased(similarity: Array, size: int, link: str) -> None:
    value = mean_over_subsets(similarity, size, "in_batch", link)
    assert abs(value - expected_objective("unbiased", similarity, link, size)) > 0.01


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 3), (3, 2), (2, 8)])
def test_sogram_is_unbiased(similarity: Array, first: int, second: int, link: str) -> None:
    values = []
    for one in combinations(PAIRS, first):
        rows, own_cols = (np.array(side) for side in zip(*one, strict=True))
        for other in combinations(PAIRS, second):
            cols = np.array([pair[1] for pair in other])
            value = losses.sogram(
                torch.from_numpy(similarity[rows, own_cols]),
                torch.from_numpy(similarity[np.ix_(rows, cols)]),
                row_count=torch.from_numpy(ROW_COUNT[rows]),
                col_count=torch.from_numpy(COL_COUNT[cols]),
                num_positives=TOTAL,
                shape=(4, 4),
                link=link,
            )
            values.append(float(value))
    expected = expected_objective("unbiased", similarity, link, 2)
    assert float(np.mean(values)) == pytest.approx(expected, rel=0, abs=1e-12)


def test_special_cases_meet(similarity: Array) -> None:
    """With all positives in the batch (14) becomes (15); a single positive leaves l+ alone."""
    everything = tuple(PAIRS)
    for link in LINKS:
        in_batch = batch_loss(similarity, everything, "in_batch", link)
        assert in_batch == pytest.approx(batch_loss(similarity, everything, "popularity", link), rel=1e-13)
        pos_neg = batch_loss(similarity, everything, "pos_neg", link)
        assert pos_neg == pytest.approx(batch_loss(similarity, everything, "unbiased", link), rel=1e-13)
        row, col = PAIRS[3]
        alone = TOTAL / 16 * link_losses(similarity, link)[0][row, col]
        assert batch_loss(similarity, (PAIRS[3],), "in_batch", link) == pytest.approx(alone, rel=1e-13)


COUNTS = {"row_count": torch.tensor([1.0, 2.0, 3.0]), "col_count": torch.tensor([4, 1, 2])}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("objective", ["in_batch", "popularity", "pos_neg", "unbiased", "unbiased_omega"])
def test_general_duties(
    draw: Draw,
    assert_dtypes: Callable[..., None],
    assert_survives_extremes: Callable[..., None],
    *,
    objective: str,
    link: str,
) -> None:
    def loss(scores: Tensor) -> Tensor:
        return losses.pointwise_in_batch(
            scores, **COUNTS, num_positives=20.0, shape=(9, 8), objective=objective, link=link, omega=0.5
        )

    assert_dtypes(loss, draw(0, 3, 3))
    assert_survives_extremes(loss, (3, 3))
    assert torch.autograd.gradcheck(loss, (draw(0, 3, 3).requires_grad_(),))


@pytest.mark.parametrize("link", LINKS)
def test_sogram_general_duties(
    draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None], link: str
) -> None:
    def loss(pos_scores: Tensor, cross_scores: Tensor) -> Tensor:
        return losses.sogram(
            pos_scores,
            cross_scores,
            row_count=COUNTS["row_count"],
            col_count=COUNTS["col_count"][:2],
            num_positives=20,
            shape=(9, 8),
            link=link,
        )

    assert_dtypes(loss, draw(0, 3), draw(1, 3, 2))
    assert_survives_extremes(loss, (3,), (3, 2))
    assert torch.autograd.gradcheck(loss, (draw(0, 3).requires_grad_(), draw(1, 3, 2).requires_grad_()))


@pytest.mark.parametrize("objective", ["popularity", "unbiased", "unbiased_omega"])
def test_one_positive_cannot_be_corrected(objective: str) -> None:
    with pytest.raises(ValueError, match=f"at least 2 positives for objective='{objective}', got n = 1"):
        losses.pointwise_in_batch(
            torch.zeros(1, 1),
            row_count=torch.ones(1),
            col_count=torch.ones(1),
            num_positives=5,
            shape=(4, 4),
            objective=objective,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objective": "best"},
            "objective must be one of in_batch, popularity, pos_neg, unbiased, unbiased_omega, got",
        ),
        ({"link": "probit"}, "link must be one of logistic, square, got 'probit'"),
        ({"scores": torch.zeros(3, 2)}, r"scores must have shape \(n, m=3\), got \(3, 2\)"),
        ({"scores": torch.tensor(0.0)}, r"scores must have shape \(n, m\), got \(\)"),
        ({"scores": torch.zeros(0, 0)}, "scores must have at least one element in dimension 0"),
        ({"row_count": torch.ones(2)}, r"row_count must have shape \(n=3\), got \(2,\)"),
        ({"col_count": torch.ones(3, 1)}, r"col_count must have shape \(n=3\), got \(3, 1\)"),
        ({"row_count": torch.tensor([1, 0, 2])}, "row_count must be finite and above 0, got 0"),
        ({"col_count": torch.tensor([1.0, torch.nan, 2.0])}, "col_count must be finite and above 0, got nan"),
        ({"num_positives": 2}, "num_positives must be at least the sample size 3, got 2"),
        ({"num_positives": float("nan")}, "num_positives must be at least the sample size 3, got nan"),
        ({"shape": (0, 4)}, r"shape must be \(rows, columns\), each at least 1, got \(0, 4\)"),
        ({"omega": -1.0}, "omega must be a finite number of at least 0, got -1.0"),
    ],
)
def test_refuses(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "scores": torch.zeros(3, 3),
        **COUNTS,
        "num_positives": 9,
        "shape": (4, 4),
        "objective": "unbiased",
    }
    with pytest.raises(ValueError, match=message):
        losses.pointwise_in_batch(**(arguments | changes))  # type: ignore[arg-type]


def test_refuses_a_batch_without_a_second_positive_in_the_world() -> None:
    with pytest.raises(ValueError, match="num_positives must be above 1 for objective='pos_neg', got 1"):
        losses.pointwise_in_batch(
            torch.zeros(1, 1),
            row_count=torch.ones(1),
            col_count=torch.ones(1),
            num_positives=1,
            shape=(4, 4),
            objective="pos_neg",
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": "probit"}, "link must be one of logistic, square, got 'probit'"),
        ({"cross_scores": torch.zeros(2, 2)}, r"cross_scores must have shape \(n1=3, n2\), got \(2, 2\)"),
        ({"cross_scores": torch.zeros(3, 0)}, "cross_scores must have at least one element in dimension 1"),
        ({"col_count": torch.ones(3)}, r"col_count must have shape \(n=2\), got \(3,\)"),
        ({"row_count": torch.zeros(3)}, "row_count must be finite and above 0, got 0.0"),
    ],
)
def test_sogram_refuses(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "pos_scores": torch.zeros(3),
        "cross_scores": torch.zeros(3, 2),
        "row_count": torch.ones(3),
        "col_count": torch.ones(2),
        "num_positives": 9,
        "shape": (4, 4),
    }
    with pytest.raises(ValueError, match=message):
        losses.sogram(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("link", LINKS)
def test_labelled_cells_estimate_the_objective(similarity: Array, link: str) -> None:
    """All cells at once are the objective; so is the mean over all batches of two cells drawn alike, by linearity."""
    labels = torch.from_numpy(LABELS.astype(bool))
    scores = torch.from_numpy(similarity)
    wanted = objective_value(similarity, link, unlabelled=np.ones((4, 4)), missed=np.zeros((4, 4)))
    assert losses.pointwise_labelled(scores, labels, link=link).item() == pytest.approx(wanted, abs=1e-12)
    flat, marks = scores.flatten(), labels.flatten()
    pairs = torch.cartesian_prod(torch.arange(len(flat)), torch.arange(len(flat)))
    batches = [losses.pointwise_labelled(flat[pair], marks[pair], link=link) for pair in pairs]
    assert torch.stack(batches).mean().item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.zeros(2), torch.zeros(3, dtype=torch.bool)),
        (torch.zeros(2), torch.zeros(2)),
        (torch.zeros(0), torch.zeros(0, dtype=torch.bool)),
    ],
)
def test_labelled_refuses(scores: Tensor, labels: Tensor) -> None:
    with pytest.raises(ValueError, match="labels must be booleans of the shape of scores"):
        losses.pointwise_labelled(scores, labels)
