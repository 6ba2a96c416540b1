"""What the two corrections have in common, and what is put in between."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.row_weights import WEIGHTS, Weight, training_with, weighed
from weir.trainer.config import NegativesConfig, TrainerConfig
from weir.trainer.losses import exclude_positive, sampled_softmax, softmax
from weir.trainer.losses.inputs import LossInputs

ROWS, COLUMNS, DIMENSION = 5, 12, 4
STANDARD = TrainerConfig(negatives=NegativesConfig(correction="standard"))


def step(seed: int) -> LossInputs:
    """Return random vectors of rows and columns, with a random log Q and one hit in each row."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    rows = torch.arange(ROWS)
    return LossInputs(
        users=normal(ROWS, DIMENSION).requires_grad_(),
        positives=normal(ROWS, DIMENSION),
        temperature=0.5,
        columns=normal(COLUMNS, DIMENSION),
        hits=torch.stack([rows, rows], 1),
        log_q_pos=-2 - normal(ROWS).abs(),
        log_q_columns=-2 - normal(COLUMNS).abs(),
    )


def gradient(losses: Tensor, made: LossInputs) -> Tensor:
    """Return the gradient of the sum of the losses by the rows' vectors, (b, d)."""
    return torch.autograd.grad(losses.sum(), made.users)[0]


def by_weight(weight: Weight, made: LossInputs) -> Tensor:
    return gradient(weighed(weight)(made, STANDARD), made)


def improved(made: LossInputs) -> Tensor:
    density = exclude_positive(made.given("log_q_columns"), made.given("log_q_pos"))
    losses = sampled_softmax(made.pos, made.pooled, log_q_neg=density, keep=made.keep, correction="improved")
    return gradient(losses, made)


@given(seed=st.integers(0, 2**31))
def test_both_corrections_pull_each_row_in_the_same_direction(seed: int) -> None:
    made = step(seed)
    standard = gradient(softmax.sampled_softmax_of(made, STANDARD), made)
    torch.testing.assert_close(torch.cosine_similarity(standard, improved(made), 1), torch.ones_like(standard[:, 0]))


@given(seed=st.integers(0, 2**31))
def test_exponent_one_is_standard(seed: int) -> None:
    made = step(seed)
    standard = gradient(softmax.sampled_softmax_of(made, STANDARD), made)
    torch.testing.assert_close(by_weight(WEIGHTS["1 / (k Q): standard"], made), standard)


def test_exponent_zero_is_improved_where_the_positive_is_rare() -> None:
    """All but the factor 1 - Q(p) of the positive, and the hit, which does not count among the columns."""
    made = step(0)
    rare = LossInputs(
        made.users,
        made.positives,
        made.temperature,
        made.columns,
        torch.empty(0, 2, dtype=torch.int64),
        log_q_pos=torch.full((ROWS,), -40.0, dtype=torch.float64),
        log_q_columns=made.log_q_columns,
    )
    torch.testing.assert_close(by_weight(WEIGHTS["once: improved"], rare), improved(rare))


def test_the_mean_takes_the_same_from_all_rows() -> None:
    log_q = torch.tensor([0.1, 0.01, 0.001], dtype=torch.float64).log()
    each = WEIGHTS["1 / (k Q): standard"].log_times(log_q, 10)
    assert each.exp().tolist() == pytest.approx([1, 10, 100])
    assert WEIGHTS["1 / (k Q), the mean"].log_times(log_q, 10).exp().tolist() == pytest.approx([10, 10, 10])


def test_the_trainer_gets_its_own_loss_back() -> None:
    before = softmax.sampled_softmax_of
    with training_with(Weight(0.5)):
        assert softmax.sampled_softmax_of is not before
    assert softmax.sampled_softmax_of is before
