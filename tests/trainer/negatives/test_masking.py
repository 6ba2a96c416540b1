import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer.config import NegativesConfig
from trainer.negatives import draw_uniform, keep_mask, log_density

small = st.integers(0, 12)


@given(
    hnp.arrays(np.int64, st.integers(1, 15), elements=small),
    hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=small),
    st.randoms(use_true_random=False),
)
def test_keep_mask_is_what_comparing_everything_gives(columns: np.ndarray, forbidden: np.ndarray, draw: object) -> None:
    real = np.array([draw.random() < 0.8 for _ in columns])  # type: ignore[attr-defined]
    found = keep_mask(torch.from_numpy(columns), torch.from_numpy(real), torch.from_numpy(forbidden))
    wanted = [[bool(ok) and item not in row for item, ok in zip(columns, real, strict=True)] for row in forbidden]
    assert found.tolist() == wanted


@pytest.mark.parametrize(
    "config",
    [
        NegativesConfig(uniform=0),
        NegativesConfig(in_batch=False, uniform=40),
        NegativesConfig(uniform=24),
    ],
)
def test_the_density_is_the_frequency_with_which_columns_hold_an_item(config: NegativesConfig) -> None:
    """Draw many steps as training does, and count what stands in their columns."""
    items, batch, steps = 8, 40, 4000
    popularity = np.arange(1, items + 1) / 36
    draw = torch.Generator().manual_seed(5)
    counts = torch.zeros(items)
    for _ in range(steps):
        if config.in_batch:
            positives = torch.multinomial(torch.from_numpy(popularity), batch, replacement=True, generator=draw)
            counts += torch.bincount(positives, minlength=items)
        counts += torch.bincount(draw_uniform(torch.arange(items), config.uniform, draw), minlength=items)
    density = log_density(config, torch.from_numpy(np.log(popularity)), batch, items).exp()
    frequency = (counts / counts.sum()).double()
    assert abs(float(density.sum()) - 1) < 1e-9
    # Five standard deviations of a share, with at least 160,000 draws.
    assert (frequency - density).abs().max() < 5 * (0.25 / float(counts.sum())) ** 0.5


def test_a_lone_item_has_a_density_below_one() -> None:
    density = log_density(NegativesConfig(uniform=4), torch.tensor([-1e-6]), 3, 1)
    assert float(density) < 0


def test_uniform_draws_are_live_rows() -> None:
    live = torch.tensor([3, 9, 11])
    found = draw_uniform(live, 500, torch.Generator().manual_seed(0))
    assert set(found.tolist()) == {3, 9, 11}
