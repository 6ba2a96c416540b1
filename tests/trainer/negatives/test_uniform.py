import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.negatives.support import assert_share, real, seeded
from weir.trainer.losses import exclude_positive
from weir.trainer.negatives import PerRow, Pool, Uniform, draw_uniform

LIVE = torch.tensor([3, 9, 11, 4, 20])
POOL = Pool(2, 2)


@pytest.mark.parametrize("sampler", [Uniform(LIVE, 20_000), PerRow(LIVE, 10_000)])
def test_frequencies_follow_the_density(sampler: Uniform) -> None:
    items = sampler.draw(torch.tensor([3, 9]), real(2), seeded()).items
    density = sampler.log_q(LIVE, POOL).exp()
    assert float(density.sum()) == pytest.approx(1)
    share = torch.stack([(items == item).float().mean() for item in LIVE])
    assert_share(share, density, 20_000)
    assert torch.equal(sampler.log_q_own(LIVE, POOL), sampler.log_q(LIVE, POOL))


def test_rows_draw_on_their_own() -> None:
    items, mask = PerRow(LIVE, 2_000).draw(torch.tensor([3, 9]), torch.tensor([True, False]), seeded())
    assert items.shape == mask.shape == (2, 2_000)
    assert mask.all(1).tolist() == [True, False]
    together = (items[0] == items[1]).float().mean()
    assert_share(together, torch.tensor(1 / 5), 2_000)


@given(count=st.integers(0, 20), seed=st.integers(0, 10**6))
def test_a_seed_repeats_the_draw(count: int, seed: int) -> None:
    for sampler in (Uniform(LIVE, count), PerRow(LIVE, count)):
        first, second = (sampler.draw(torch.tensor([3, 9, 9]), real(3), seeded(seed)) for _ in range(2))
        assert torch.equal(first.items, second.items)
        assert first.items.shape[-1] == count
        assert set(first.items.flatten().tolist()) <= set(LIVE.tolist())


def test_uniform_draws_are_live_rows() -> None:
    assert set(draw_uniform(LIVE, 500, seeded()).tolist()) == set(LIVE.tolist())


def test_a_lone_item_can_still_be_excluded() -> None:
    sampler, item = Uniform(torch.tensor([7]), 3), torch.tensor([7])
    assert exclude_positive(sampler.log_q(item, POOL), sampler.log_q_own(item, POOL)).isfinite().all()


def test_refuses() -> None:
    with pytest.raises(ValueError, match=r"live must hold at least one table row, shape \(V,\), got \(0,\)"):
        Uniform(LIVE[:0], 1)
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        PerRow(LIVE, -1)
