"""Draws shared by the loss tests: random float64 logits from a seed, and the checks every row loss must pass."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

RowLoss = Callable[..., Tensor]


@pytest.fixture(scope="session")
def draw() -> Callable[..., Tensor]:
    """Return float64 normal draws: draw(seed, *shape, scale=2.0)."""

    def draw(seed: int, *shape: int, scale: float = 2.0) -> Tensor:
        return torch.from_numpy(np.random.default_rng(seed).normal(0.0, scale, shape))

    return draw


@pytest.fixture(scope="session")
def assert_survives_extremes() -> Callable[..., None]:
    """Check that float32 logits of +-1e4 in every combination give finite loss and gradient."""

    def check(loss: RowLoss, *shapes: tuple[int, ...]) -> None:
        generator = torch.Generator().manual_seed(0)
        for trial in range(24):
            scale = 1e4 if trial % 2 else torch.tensor([0.0, 1.0, 1e2, 1e4])
            inputs = []
            for shape in shapes:
                sign = torch.randint(-1, 2, shape, generator=generator).float()
                if isinstance(scale, Tensor):
                    sign = sign * scale[torch.randint(4, shape, generator=generator)]
                else:
                    sign = sign * scale
                inputs.append(sign.requires_grad_())
            _check_finite(loss, inputs)
        for value in (-1e4, 0.0, 1e4):
            _check_finite(loss, [torch.full(shape, value).requires_grad_() for shape in shapes])

    return check


def _check_finite(loss: RowLoss, inputs: list[Tensor]) -> None:
    value = loss(*inputs)
    assert value.dtype == torch.float32
    assert value.isfinite().all(), (value, inputs)
    for gradient in torch.autograd.grad(value.sum(), inputs):
        assert gradient.isfinite().all(), (gradient, inputs)


@pytest.fixture(scope="session")
def assert_dtypes() -> Callable[..., None]:
    """Check that the dtype of the logits comes out, and that the value is that of float64 to the dtype's precision."""

    def check(loss: RowLoss, *inputs: Tensor) -> None:
        exact = loss(*inputs)
        assert exact.dtype == torch.float64
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-8)):
            value = loss(*(tensor.to(dtype) for tensor in inputs))
            assert value.dtype == dtype
            rounded = loss(*(tensor.to(dtype).double() for tensor in inputs))
            torch.testing.assert_close(value.double(), rounded, rtol=tolerance, atol=tolerance)

    return check


@pytest.fixture(scope="session")
def assert_ignores_masked() -> Callable[..., None]:
    """Check what a `keep` mask promises: masked logits do nothing, and a row without negatives is exactly 0."""

    def check(loss: Callable[[Tensor, Tensor, Tensor], Tensor], pos: Tensor, neg: Tensor, keep: Tensor) -> None:
        empty = ~keep.any(1)
        garbage = torch.where(keep, neg, torch.nan)
        value, gradients = _value_and_gradients(loss, pos, neg, keep)
        dirty, dirty_gradients = _value_and_gradients(loss, pos.masked_fill(empty, torch.nan), garbage, keep)
        torch.testing.assert_close(dirty, value, rtol=0, atol=0)
        for mine, other in zip(dirty_gradients, gradients, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
        assert value.requires_grad
        assert (value[empty] == 0).all()
        assert (gradients[0][empty] == 0).all()
        assert (gradients[1][~keep] == 0).all()
        for row in (~empty).nonzero()[:, 0].tolist():
            alone = loss(pos[row : row + 1], neg[row : row + 1, keep[row]], keep[row : row + 1, keep[row]])
            torch.testing.assert_close(value[row : row + 1], alone)

    return check


def _value_and_gradients(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], pos: Tensor, neg: Tensor, keep: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    pos, neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    value = loss(pos, neg, keep)
    return value, torch.autograd.grad(value.sum(), (pos, neg))
