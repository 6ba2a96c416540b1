"""What the checks share; the messages of each loss are tested beside the loss."""

import pytest
import torch

from weir.trainer.losses import _numerics as checks


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
