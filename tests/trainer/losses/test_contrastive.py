from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]
Array = np.ndarray


def debiased_by_formula(pos: Array, neg: Array, *, tau_plus: float, beta: float, temperature: float) -> Array:
    weights = np.exp(beta * neg)
    weights /= weights.mean(1, keepdims=True)
    of_negatives = (weights * np.exp(neg)).mean(1) - tau_plus * np.exp(pos).mean(1)
    g = np.maximum(of_negatives / (1 - tau_plus), np.exp(-1 / temperature))
    positive = np.exp(pos[:, 0])
    return -np.log(positive / (positive + neg.shape[1] * g))


def positive_by_formula(pos: Array, neg: Array, *, tau_plus: float, self_logit: Array) -> Array:
    """Equations 12 to 14 and 16, with the documented floor under the numerator."""
    size, tau_minus = neg.shape[1], 1 - tau_plus
    of_negatives = np.exp(neg).mean(1, keepdims=True)
    of_all = (np.exp(neg).sum(1, keepdims=True) + np.exp(pos) + np.exp(self_logit)[:, None]) / (size + 2)
    numerator = of_all - tau_minus * of_negatives
    denominator = of_all + (size * tau_plus - tau_minus) * of_negatives
    floor = tau_plus * np.exp(-self_logit)[:, None]
    held = floor / (floor + size * tau_plus * of_negatives)
    return -np.log(np.where(numerator > floor, numerator / denominator, held)).mean(1)


class TestDebiasedNegatives:
    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.integers(1, 4),
        extra=st.integers(0, 3),
        columns=st.integers(1, 6),
        seed=st.integers(0, 10**6),
        tau_plus=st.floats(0.01, 0.9),
        beta=st.sampled_from([0.0, 0.5, 2.0]),
        temperature=st.sampled_from([0.2, 1.0, 3.0]),
    )
    def test_equals_the_formula(
        self,
        draw: Draw,
        *,
        rows: int,
        extra: int,
        columns: int,
        seed: int,
        tau_plus: float,
        beta: float,
        temperature: float,
    ) -> None:
        pos, neg = draw(seed, rows, 1 + extra), draw(seed + 1, rows, columns)
        value = losses.hard_contrastive(pos, neg, tau_plus=tau_plus, beta=beta, temperature=temperature)
        expected = debiased_by_formula(pos.numpy(), neg.numpy(), tau_plus=tau_plus, beta=beta, temperature=temperature)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-9)

    def test_both_sides_of_the_floor_are_met(self, draw: Draw) -> None:
        """The property above would prove little if the floor acted always or never."""
        pos, neg = draw(0, 200, 2), draw(1, 200, 5)
        neg.requires_grad_()
        losses.debiased_contrastive(pos, neg, tau_plus=0.3).sum().backward()
        assert neg.grad is not None
        held = (neg.grad == 0).all(1)
        assert 20 < int(held.sum()) < 180

    def test_special_cases_meet(self, draw: Draw) -> None:
        pos, neg = draw(0, 5, 3), draw(1, 5, 4)
        plain = losses.debiased_contrastive(pos, neg, tau_plus=0.1, temperature=0.5)
        weighted = losses.hard_contrastive(pos, neg, tau_plus=0.1, beta=0.0, temperature=0.5)
        torch.testing.assert_close(weighted, plain, rtol=0, atol=0)
        without_prior = losses.debiased_contrastive(pos, neg, tau_plus=1e-13, temperature=0.01)
        torch.testing.assert_close(without_prior, losses.info_nce(pos[:, 0], neg), rtol=1e-9, atol=1e-9)
        alone = losses.debiased_contrastive(pos[:, :1], neg[:, :1], tau_plus=1e-13, temperature=0.01)
        torch.testing.assert_close(alone, losses.bpr(pos[:, 0], neg[:, 0]), rtol=1e-9, atol=1e-9)

    def test_gradient_goes_through_the_weights(self, draw: Draw) -> None:
        pos, neg = draw(0, 3, 2, scale=0.3).requires_grad_(), draw(1, 3, 4, scale=0.3).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda p, n: losses.hard_contrastive(p, n, tau_plus=0.1, beta=1.5, temperature=0.5), (pos, neg)
        )

    def test_general_duties(
        self, draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
    ) -> None:
        for beta in (0.0, 2.0):

            def loss(pos: Tensor, neg: Tensor, beta: float = beta) -> Tensor:
                return losses.hard_contrastive(pos, neg, tau_plus=0.1, beta=beta, temperature=0.3)

            assert_dtypes(loss, draw(0, 3, 2, scale=0.5), draw(1, 3, 5, scale=0.5))
            assert_survives_extremes(loss, (4, 3), (4, 5))

    def test_equal_expectations_leave_a_finite_gradient(self) -> None:
        """log(e^a - e^b) has a pole at a = b, which a tiny temperature leaves open."""
        pos = torch.zeros(1, 1, requires_grad=True)
        neg = torch.full((1, 1), float(np.log(0.25)), requires_grad=True)
        losses.debiased_contrastive(pos, neg, tau_plus=0.25, temperature=1e-3).sum().backward()
        assert pos.grad is not None
        assert neg.grad is not None
        assert pos.grad.isfinite().all()
        assert neg.grad.isfinite().all()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"tau_plus": 0.0}, "tau_plus must lie strictly between 0 and 1, got 0.0"),
            ({"tau_plus": 1.0}, "tau_plus must lie strictly between 0 and 1, got 1.0"),
            ({"tau_plus": float("nan")}, "tau_plus must lie strictly between 0 and 1, got nan"),
            ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
            ({"beta": -1.0}, "beta must be a finite number of at least 0, got -1.0"),
            ({"pos": torch.zeros(2)}, r"pos must have shape \(B, P\), got \(2,\)"),
            ({"pos": torch.zeros(2, 0)}, "pos must have at least one element in dimension 1"),
            ({"neg": torch.zeros(2, 0)}, "neg must have at least one element in dimension 1"),
            ({"neg": torch.zeros(3, 2)}, r"neg must have shape \(B=2, N\), got \(3, 2\)"),
        ],
    )
    def test_refuses(self, changes: dict[str, object], message: str) -> None:
        arguments: dict[str, object] = {
            "pos": torch.zeros(2, 1),
            "neg": torch.zeros(2, 3),
            "tau_plus": 0.1,
            "beta": 1.0,
        }
        with pytest.raises(ValueError, match=message):
            losses.hard_contrastive(**(arguments | changes))  # type: ignore[arg-type]
        if "beta" not in changes:
            del arguments["beta"]
            with pytest.raises(ValueError, match=message):
                losses.debiased_contrastive(**(arguments | changes))  # type: ignore[arg-type]


class TestDebiasedPositives:
    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.integers(1, 4),
        positives=st.integers(1, 3),
        columns=st.integers(1, 6),
        seed=st.integers(0, 10**6),
        tau_plus=st.floats(0.01, 0.9),
        scale=st.sampled_from([0.3, 2.0]),
    )
    def test_equals_the_formula(
        self, draw: Draw, *, rows: int, positives: int, columns: int, seed: int, tau_plus: float, scale: float
    ) -> None:
        pos, neg = draw(seed, rows, positives, scale=scale), draw(seed + 1, rows, columns, scale=scale)
        own = draw(seed + 2, rows).abs()
        value = losses.debiased_positive(pos, neg, tau_plus=tau_plus, self_logit=own)
        expected = positive_by_formula(pos.numpy(), neg.numpy(), tau_plus=tau_plus, self_logit=own.numpy())
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-9)

    def test_takes_a_number_as_self_logit(self, draw: Draw) -> None:
        pos, neg = draw(0, 3, 2), draw(1, 3, 4)
        by_number = losses.debiased_positive(pos, neg, tau_plus=0.2, self_logit=2.0)
        by_tensor = losses.debiased_positive(pos, neg, tau_plus=0.2, self_logit=torch.full((3,), 2.0))
        torch.testing.assert_close(by_number, by_tensor, rtol=0, atol=0)

    def test_several_positives_are_averaged(self, draw: Draw) -> None:
        pos, neg = draw(0, 3, 4), draw(1, 3, 5)
        singly = [losses.debiased_positive(pos[:, [m]], neg, tau_plus=0.2, self_logit=1.0) for m in range(4)]
        together = losses.debiased_positive(pos, neg, tau_plus=0.2, self_logit=1.0)
        torch.testing.assert_close(together, torch.stack(singly).mean(0), rtol=1e-12, atol=0)

    def test_below_the_floor_the_positive_is_still_raised(self) -> None:
        pos = torch.tensor([[-1.0, 0.5]], dtype=torch.float64, requires_grad=True)
        neg = torch.tensor([[4.0, 5.0, 3.0]], dtype=torch.float64, requires_grad=True)
        own = torch.ones(1, dtype=torch.float64, requires_grad=True)
        value = losses.debiased_positive(pos, neg, tau_plus=0.01, self_logit=own)
        of_negatives = neg.exp().mean().item()
        floor = 0.01 * np.exp(-1.0)
        numerator = (3 * of_negatives + np.exp([-1.0, 0.5]) + np.e) / 5 - 0.99 * of_negatives
        assert (numerator < floor).all()
        assert value.item() == pytest.approx(-np.log(floor / (floor + 0.03 * of_negatives)), rel=1e-12)
        value.sum().backward()
        assert pos.grad is not None
        assert neg.grad is not None
        assert (pos.grad < 0).all()
        assert (neg.grad > 0).all()
        assert own.grad is None or own.grad == 0

    def test_gradient_above_the_floor(self, draw: Draw) -> None:
        pos, neg = draw(0, 3, 2, scale=0.3).requires_grad_(), draw(1, 3, 4, scale=0.3).requires_grad_()
        own = torch.full((3,), 1.0, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda p, n, s: losses.debiased_positive(p, n, tau_plus=0.5, self_logit=s), (pos, neg, own)
        )

    def test_general_duties(
        self, draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
    ) -> None:
        for tau_plus in (0.01, 0.5):

            def loss(pos: Tensor, neg: Tensor, tau_plus: float = tau_plus) -> Tensor:
                return losses.debiased_positive(pos, neg, tau_plus=tau_plus, self_logit=1.0)

            assert_survives_extremes(loss, (4, 2), (4, 5))
        assert_dtypes(loss, draw(0, 3, 2, scale=0.5), draw(1, 3, 5, scale=0.5))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"tau_plus": 1.0}, "tau_plus must lie strictly between 0 and 1, got 1.0"),
            ({"neg": torch.zeros(2, 3).double()}, "neg must have the dtype of pos, torch.float32, got torch.float64"),
            ({"self_logit": torch.zeros(3)}, r"self_logit must have shape \(B=2\), got \(3,\)"),
            ({"pos": torch.zeros(2)}, r"pos must have shape \(B, M\), got \(2,\)"),
            ({"pos": torch.zeros(2, 0)}, "pos must have at least one element in dimension 1"),
            ({"neg": torch.zeros(2, 0)}, "neg must have at least one element in dimension 1"),
        ],
    )
    def test_refuses(self, changes: dict[str, object], message: str) -> None:
        arguments: dict[str, object] = {
            "pos": torch.zeros(2, 1),
            "neg": torch.zeros(2, 3),
            "tau_plus": 0.1,
            "self_logit": 1.0,
        }
        with pytest.raises(ValueError, match=message):
            losses.debiased_positive(**(arguments | changes))  # type: ignore[arg-type]
