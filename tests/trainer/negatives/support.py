"""What the tests of several samplers share."""

import torch
from torch import Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def real(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.bool)


def assert_share(found: Tensor, density: Tensor, trials: int) -> None:
    """Compare shares of independent trials with their probabilities, within five standard deviations."""
    slack = 5 * (density * (1 - density) / trials).sqrt()
    assert ((found - density).abs() <= slack + 1e-9).all(), (found, density)
