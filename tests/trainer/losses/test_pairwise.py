""""""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weir.trainer import losses

Draw = Callable[..., Tensor]


def by_formula(pos: np.ndarray, neg: np.ndarray, keep: np.ndarray, power: float) -> list[float]:
    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    rows = []
    for f, others, kept in zip(pos, neg, keep, strict=True):
        terms = [-np.log(sigmoid(f) ** power), *(-np.log(1 - sigmoid(others[kept])))]
        rows.append(float(np.mean(terms)) if kept.any() else 0.0)
    return rows


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(0, 6),
    seed=st.integers(0, 10**6),
    density=st.sampled_from([0.0, 0.4, 1.0]),
    calibration=st.floats(0, 1),
    spare=st.integers(1, 50),
)
def test_equals_the_formula(
    draw: Draw, *, rows: int, columns: int, seed: int, density: float, calibration: float, spare: int
) -> None:
    pos, neg = draw(seed, rows), draw(seed + 1, rows, columns)
    keep = torch.from_numpy(np.random.default_rng(seed).uniform(size=(rows, columns)) < density)
    arrays = pos.numpy(), neg.numpy(), keep.numpy()
    np.testing.assert_allclose(losses.bce(pos, neg, keep).numpy(), by_formula(*arrays, 1.0), rtol=1e-11, atol=1e-13)
    value = losses.gbce(pos, neg, catalog_size=columns + 1 + spare, calibration=calibration, keep=keep)
    if columns:
        rate = columns / (columns + spare)
        power = rate * ((1 - 1 / rate) * calibration + 1 / rate)
        np.testing.assert_allclose(value.numpy(), by_formula(*arrays, power), rtol=1e-10, atol=1e-13)
    else:
        assert (value == 0).all()


def test_rate_counts_masked_columns(draw: Draw) -> None:
    pos, neg = draw(0, 1), draw(1, 1, 4)
    keep = torch.tensor([[True, True, False, False]])
    value = losses.gbce(pos, neg, catalog_size=9, calibration=1.0, keep=keep)
    np.testing.assert_allclose(value.numpy(), by_formula(pos.numpy(), neg.numpy(), keep.numpy(), 4 / 8), rtol=1e-12)


def test_special_cases_meet(draw: Draw) -> None:
    pos, neg = draw(1, 4), draw(2, 4, 6)
    plain = losses.bce(pos, neg)
    torch.testing.assert_close(losses.gbce(pos, neg, catalog_size=99, calibration=0.0), plain, rtol=0, atol=0)
    torch.testing.assert_close(losses.gbce(pos, neg, catalog_size=7, calibration=1.0), plain, rtol=0, atol=0)
    torch.testing.assert_close(losses.bce(pos, neg, torch.ones(4, 6, dtype=torch.bool)), plain, rtol=0, atol=0)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "bce": lambda pos, neg, keep=None: losses.bce(pos, neg, keep),
    "gbce": lambda pos, neg, keep=None: losses.gbce(pos, neg, catalog_size=1000, keep=keep),
}


@pytest.mark.parametrize("name", LOSSES)
def test_general_duties(
    draw: Draw,
    assert_dtypes: Callable[..., None],
    assert_survives_extremes: Callable[..., None],
    name: str,
) -> None:
    keep = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)

    def loss(pos: Tensor, neg: Tensor) -> Tensor:
        return LOSSES[name](pos, neg, keep)

    assert_dtypes(loss, draw(1, 3), draw(2, 3, 4))
    assert_survives_extremes(loss, (3,), (3, 4))
    assert torch.autograd.gradcheck(loss, (draw(1, 3).requires_grad_(), draw(2, 3, 4).requires_grad_()))


def test_mask_means_absence(draw: Draw, assert_ignores_masked: Callable[..., None]) -> None:
    keep = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    assert_ignores_masked(losses.bce, draw(0, 3), draw(1, 3, 3), keep)
    assert_ignores_masked(losses.bce, draw(0, 3), draw(1, 3, 3), torch.zeros_like(keep))

    # Without calibration the rate does not matter, so the check may leave masked columns out altogether.
    def gbce(pos: Tensor, neg: Tensor, mask: Tensor) -> Tensor:
        return losses.gbce(pos, neg, catalog_size=50, calibration=0.0, keep=mask)

    assert_ignores_masked(gbce, draw(0, 3), draw(1, 3, 3), keep)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"catalog_size": 1}, "catalog_size must be at least 2, got 1"),
        ({"catalog_size": 3}, "neg must have at most catalog_size - 1 = 2 columns, got 3"),
        ({"calibration": 1.1}, r"calibration must lie in \[0, 1\], got 1.1"),
        ({"calibration": float("nan")}, r"calibration must lie in \[0, 1\], got nan"),
        ({"neg": torch.zeros(3, 3)}, r"neg must have shape \(B=2, N\), got \(3, 3\)"),
        ({"keep": torch.ones(2, 3)}, "keep must be boolean"),
    ],
)
def test_refuses(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"pos": torch.zeros(2), "neg": torch.zeros(2, 3), "catalog_size": 10}
    with pytest.raises(ValueError, match=message):
        losses.gbce(**(arguments | changes))  # type: ignore[arg-type]


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
