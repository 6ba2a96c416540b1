import numpy as np
import pytest
import torch

from trainer.config import NegativesConfig
from trainer.negatives import Pool, shared_pool


@pytest.mark.parametrize(
    "config",
    [
        NegativesConfig(uniform=0),
        NegativesConfig(uniform=0, in_batch_limit=7),
        NegativesConfig(in_batch=False, uniform=40),
        NegativesConfig(uniform=24),
        NegativesConfig(uniform=24, in_batch_limit=8),
    ],
)
def test_the_density_is_the_frequency_with_which_columns_hold_an_item(config: NegativesConfig) -> None:
    """Draw many steps as training does, and count what stands in their columns."""
    items, batch, steps = 8, 40, 4000
    popularity = torch.from_numpy(np.arange(1, items + 1) / 36)
    sampler, draw = shared_pool(config, popularity.log(), torch.arange(items)), torch.Generator().manual_seed(5)
    counts, real = torch.zeros(items), torch.ones(batch, dtype=torch.bool)
    for _ in range(steps):
        positives = torch.multinomial(popularity, batch, replacement=True, generator=draw)
        counts += torch.bincount(sampler.draw(positives, real, draw).items, minlength=items)
    density = sampler.log_q(torch.arange(items), Pool(batch, items)).exp()
    frequency = (counts / counts.sum()).double()
    assert abs(float(density.sum()) - 1) < 1e-9
    # Five standard deviations of a share.
    assert (frequency - density).abs().max() < 5 * (0.25 / float(counts.sum())) ** 0.5
