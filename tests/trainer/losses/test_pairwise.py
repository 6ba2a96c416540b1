from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_bpr(draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]) -> None:
    pos, neg = draw(0, 6), draw(1, 6)
    expected = -np.log(sigmoid(pos.numpy() - neg.numpy()))
    np.testing.assert_allclose(losses.bpr(pos, neg).numpy(), expected, rtol=1e-12)
    torch.testing.assert_close(losses.bpr(pos, neg), losses.info_nce(pos, neg[:, None]), rtol=1e-13, atol=0)
    assert_dtypes(losses.bpr, pos, neg)
    assert_survives_extremes(losses.bpr, (9,), (9,))
    assert torch.autograd.gradcheck(losses.bpr, (pos.clone().requires_grad_(), neg.clone().requires_grad_()))
    with pytest.raises(ValueError, match=r"neg must have shape \(B=6\), got \(6, 1\)"):
        losses.bpr(pos, neg[:, None])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4),
    extra=st.integers(1, 3),
    columns=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    tau_plus=st.floats(0.01, 0.9),
    floor=st.floats(1e-4, 0.5),
)
def test_dpl_equals_the_formula(
    draw: Draw, *, rows: int, extra: int, columns: int, seed: int, tau_plus: float, floor: float
) -> None:
    pos, extra_pos, neg = draw(seed, rows), draw(seed + 1, rows, extra), draw(seed + 2, rows, columns)
    value = losses.dpl(pos, extra_pos, neg, tau_plus=tau_plus, floor=floor)
    over_unlabelled = sigmoid(pos.numpy()[:, None] - neg.numpy()).mean(1)
    over_positives = sigmoid(pos.numpy()[:, None] - extra_pos.numpy()).mean(1)
    probability = (over_unlabelled - tau_plus * over_positives) / (1 - tau_plus)
    np.testing.assert_allclose(value.numpy(), -np.log(np.maximum(probability, floor)), rtol=1e-9, atol=1e-12)


def test_dpl_meets_bpr_as_the_prior_vanishes(draw: Draw) -> None:
    pos, extra_pos, neg = draw(0, 8), draw(1, 8, 2), draw(2, 8)
    value = losses.dpl(pos, extra_pos, neg[:, None], tau_plus=1e-13, floor=1e-12)
    torch.testing.assert_close(value, losses.bpr(pos, neg), rtol=1e-8, atol=1e-10)


def test_dpl_recovers_the_clean_probability(draw: Draw) -> None:
    """With unlabelled samples in the exact mixture of positives and negatives, the positives cancel (equation 16)."""
    pos, positives, negatives = draw(0, 5), draw(1, 5, 2), draw(2, 5, 3, scale=1.0) - 3.0
    unlabelled = torch.cat([positives, negatives], 1)
    value = losses.dpl(pos, positives, unlabelled, tau_plus=0.4, floor=1e-9)
    clean = torch.sigmoid(pos[:, None] - negatives).mean(1)
    torch.testing.assert_close(value, -clean.log(), rtol=1e-10, atol=1e-12)


def test_dpl_general_duties(
    draw: Draw, assert_dtypes: Callable[..., None], assert_survives_extremes: Callable[..., None]
) -> None:
    def loss(pos: Tensor, extra_pos: Tensor, neg: Tensor) -> Tensor:
        return losses.dpl(pos, extra_pos, neg, tau_plus=0.1)

    inputs = draw(0, 3, scale=0.5), draw(1, 3, 2, scale=0.5), draw(2, 3, 4, scale=0.5)
    assert_dtypes(loss, *inputs)
    assert_survives_extremes(loss, (6,), (6, 2), (6, 4))
    assert torch.autograd.gradcheck(loss, tuple(tensor.clone().requires_grad_() for tensor in inputs))


def test_dpl_is_flat_below_the_floor() -> None:
    pos = torch.tensor([-9.0], requires_grad=True)
    value = losses.dpl(pos, torch.zeros(1, 1), torch.zeros(1, 1), tau_plus=0.1)
    value.sum().backward()
    assert value.item() == pytest.approx(-np.log(0.01), rel=1e-6)
    assert pos.grad is not None
    assert pos.grad == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau_plus": 0.0}, "tau_plus must lie strictly between 0 and 1, got 0.0"),
        ({"floor": 0.0}, "floor must lie strictly between 0 and 1, got 0.0"),
        ({"extra_pos": torch.zeros(2, 0)}, "extra_pos must have at least one element in dimension 1"),
        ({"extra_pos": torch.zeros(2)}, r"extra_pos must have shape \(B=2, M\), got \(2,\)"),
        ({"neg": torch.zeros(2, 0)}, "neg must have at least one element in dimension 1"),
        ({"neg": torch.zeros(1, 3)}, r"neg must have shape \(B=2, N\), got \(1, 3\)"),
    ],
)
def test_dpl_refuses(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "pos": torch.zeros(2),
        "extra_pos": torch.zeros(2, 1),
        "neg": torch.zeros(2, 3),
        "tau_plus": 0.1,
    }
    with pytest.raises(ValueError, match=message):
        losses.dpl(**(arguments | changes))  # type: ignore[arg-type]
