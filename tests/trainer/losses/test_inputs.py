"""Argument checks and log-domain arithmetic of the losses, and what a loss sees of a step."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.losses.step_inputs import dense, random_inputs
from weir.trainer.losses import _numerics as checks
from weir.trainer.losses import _numerics as logspace
from weir.trainer.losses.inputs import Rescored, rescoring_loss


def test_shape_errors_name_every_dimension() -> None:
    checks.check_shape("x", torch.zeros(2, 3), B=None, N=3)
    with pytest.raises(ValueError, match=r"^x must have shape \(B, N=4\), got \(2, 3\)$"):
        checks.check_shape("x", torch.zeros(2, 3), B=None, N=4)
    with pytest.raises(ValueError, match=r"^x must have shape \(B\), got \(\)$"):
        checks.check_shape("x", torch.tensor(0.0), B=None)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^x must be float32, float64 or bfloat16, got torch.float16$"):
        checks.check_logits("n", x=torch.zeros(1).half())


def test_finite_only_where_used() -> None:
    value = torch.tensor([1.0, torch.inf])
    checks.check_finite("x", value, torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"^x must be finite wherever it is used, got 1 values that are not$"):
        checks.check_finite("x", value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_positive_numbers(value: float) -> None:
    with pytest.raises(ValueError, match="x must be a finite number above 0, got"):
        checks.check_positive("x", value)


def test_empty_indices_are_fine() -> None:
    checks.check_index("x", torch.zeros(0, dtype=torch.int64), 0)
    with pytest.raises(ValueError, match="x must hold integer indices"):
        checks.check_index("x", torch.zeros(1, dtype=torch.bool), 2)


@settings(max_examples=200, deadline=None)
@given(x=st.floats(-700, 700))
def test_softplus_is_exact_on_the_whole_line(x: float) -> None:
    value = logspace.softplus(torch.tensor(x, dtype=torch.float64))
    np.testing.assert_allclose(value.item(), np.logaddexp(0.0, x), rtol=1e-15)


@settings(max_examples=200, deadline=None)
@given(a=st.floats(-50, 50), drop=st.floats(1e-6, 60))
def test_log_diff_exp(a: float, drop: float) -> None:
    first, second = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (a, a - drop))
    value = logspace.log_diff_exp(first, second)
    gap = float(first.detach() - second.detach())
    np.testing.assert_allclose(value.item(), a + np.log1p(-np.exp(-gap)), rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(value, (first, second))
    np.testing.assert_allclose(float(gradients[0]), 1 / -np.expm1(-gap), rtol=1e-6)
    np.testing.assert_allclose(float(sum(gradients)), 1.0, rtol=1e-6)


def test_log_diff_exp_without_difference() -> None:
    first = torch.zeros(3, requires_grad=True)
    second = torch.tensor([0.0, 1.0, torch.inf], requires_grad=True)
    value = logspace.log_diff_exp(first, second)
    assert (value == -torch.inf).all()
    for gradient in torch.autograd.grad(value.sum(), (first, second)):
        assert (gradient == 0).all()


def test_log_diff_exp_of_a_denormal_gap_has_a_finite_gradient() -> None:
    first = torch.tensor([1e-40], requires_grad=True)
    logspace.log_diff_exp(first, torch.zeros(1)).sum().backward()
    assert first.grad is not None
    assert first.grad.isfinite().all()


def test_logsumexp_kept() -> None:
    x = torch.tensor([[1.0, 2.0, torch.nan], [torch.inf, torch.nan, 0.0]], requires_grad=True)
    keep = torch.tensor([[True, True, False], [False, False, False]])
    empty = logspace.no_negatives(x, keep)
    assert empty.tolist() == [False, True]
    assert logspace.count_kept(x, keep).tolist() == [2.0, 0.0]
    value = logspace.logsumexp_kept(x, keep, empty)
    np.testing.assert_allclose(value.detach().numpy(), [np.logaddexp(1.0, 2.0), 0.0], rtol=1e-6)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    np.testing.assert_allclose(gradient[0].numpy(), [1 / (1 + np.e), np.e / (1 + np.e), 0.0], rtol=1e-6)
    assert (gradient[1] == 0).all()


SIZES = {"rows": st.integers(1, 5), "columns": st.integers(2, 6), "own": st.integers(1, 3)}


@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.1, 1.0]), **SIZES)
def test_logits_are_inner_products_over_the_temperature(
    seed: int, temperature: float, rows: int, columns: int, own: int
) -> None:
    step = random_inputs(seed, rows=rows, columns=columns, own=own, temperature=temperature)
    wanted = dense(step)
    torch.testing.assert_close(step.pos, wanted.pos)
    torch.testing.assert_close(step.pooled, wanted.columns)
    torch.testing.assert_close(step.unlabelled, torch.cat([wanted.columns, wanted.own], 1))
    torch.testing.assert_close(step.all_positives, torch.cat([wanted.pos[:, None], wanted.extra_positives], 1))
    assert torch.equal(step.keep, wanted.keep)


def test_without_hits_all_columns_are_kept() -> None:
    step = random_inputs(0)
    assert replace(step, hits=step.hits[:0]).keep.all()


def test_own_negatives_extra_positives_and_columns_may_be_missing() -> None:
    step = random_inputs(1)
    bare = replace(step, own=step.own[:, :0], extra_positives=step.extra_positives[:, :0])
    assert torch.equal(bare.unlabelled, step.pooled)
    assert torch.equal(bare.all_positives, step.pos[:, None])
    bare = replace(step, columns=step.columns[:0], hits=step.hits[:0], log_q_columns=step.log_q_columns[:0])
    assert torch.equal(bare.unlabelled, step.unlabelled[:, len(step.columns) :])


def scores(rows: int = 4, columns: int = 6) -> Rescored:
    draw = torch.Generator().manual_seed(2)
    log_q = torch.log_softmax(torch.randn(rows + columns, generator=draw), 0).double()
    keep = torch.rand(rows, columns, generator=draw) < 0.7
    keep[0] = False
    return Rescored(
        torch.randn(rows, generator=draw).double().requires_grad_(),
        torch.randn(rows, columns, generator=draw).double().requires_grad_(),
        keep,
        log_q[:rows],
        log_q[rows:],
    )


def by_hand(one: Rescored, row: int, correction: str) -> float:
    """The loss of a row, negative by negative."""
    kept = [column for column in range(one.neg.shape[1]) if one.keep[row, column]]
    if not kept:
        return 0.0
    neg, log_q, pos = one.neg[row].tolist(), one.log_q_neg.tolist(), one.pos[row].item()
    own = float(one.log_q_pos[row])
    if correction == "none":
        return math.log(1 + sum(math.exp(neg[column] - pos) for column in kept))
    total = sum(math.exp(neg[column] - log_q[column]) for column in kept)
    if correction == "standard":
        return math.log(1 + total / math.exp(pos - own))
    total *= 1 - math.exp(own)
    chance = total / len(kept) / (total / len(kept) + math.exp(pos))
    return chance * (math.log(total) - pos)


@pytest.mark.parametrize("correction", ["none", "standard", "improved"])
def test_the_loss_is_the_corrected_softmax_over_the_kept_negatives(correction: str) -> None:
    one = scores()
    found = rescoring_loss(one, correction)
    torch.testing.assert_close(found.tolist(), [by_hand(one, row, correction) for row in range(len(found))])


def test_a_row_pulls_at_its_positive_and_at_its_kept_negatives_only() -> None:
    one = scores()
    rescoring_loss(one, "improved").sum().backward()
    assert one.pos.grad is not None
    assert one.neg.grad is not None
    assert torch.equal(one.neg.grad != 0, one.keep)
    assert torch.equal(one.pos.grad < 0, one.keep.any(1))
