import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.trainer.losses import _numerics as logspace


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
