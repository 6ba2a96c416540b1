import pytest
import torch

from weir.trainer.losses import ItemCache, exclude_positive, resample, resampling_log_weights
from weir.trainer.negatives import Pool
from weir.trainer.negatives.cached import Cached

POOL = Pool(4, 4)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_slots_follow_the_density() -> None:
    cache = ItemCache(50_000, 6, seeded(), torch.tensor([2, 3, 4, 5]))
    sampler = Cached(cache)
    for counted in ([], [2, 3, 3, 5, 5, 5]):
        cache.update(torch.tensor(counted, dtype=torch.int64))
        cache.redraw()
        items, real = sampler.draw(torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool), seeded())
        assert real.all()
        density = sampler.log_q(torch.arange(6), POOL).exp()
        assert float(density.sum()) == pytest.approx(1)
        assert density[:2].sum() == 0
        share = torch.bincount(items, minlength=6) / len(items)
        assert ((share - density).abs() <= 5 * (density * (1 - density) / len(items)).sqrt()).all()


def test_resampling_from_the_cache_follows_its_weights() -> None:
    """One row, the cache's candidates, and the paper's w(i|u) summed over the slots that hold an item."""
    cache = ItemCache(12, 6, seeded(3))
    candidates = Cached(cache).draw(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool), seeded()).items
    scores, log_pop = torch.randn(6, generator=seeded(1)), torch.tensor([0.3, 0.25, 0.2, 0.15, 0.08, 0.02]).log()
    weights = resampling_log_weights(scores[candidates][None], log_pop[candidates])[0].exp()
    density = torch.zeros(6).index_add_(0, candidates, weights)
    drawn = candidates[resample(scores[candidates][None], log_pop[candidates], 40_000, seeded(2))[0]]
    share = torch.bincount(drawn, minlength=6) / 40_000
    assert ((share - density).abs() <= 5 * (density * (1 - density) / 40_000).sqrt()).all()


def test_a_lone_item_can_still_be_excluded() -> None:
    cache = ItemCache(3, 4, seeded())
    cache.update(torch.tensor([1]))
    cache.redraw()
    sampler, items = Cached(cache), torch.tensor([1])
    assert sampler.log_q_own(items, POOL)[0] < 0
    assert exclude_positive(sampler.log_q(items, POOL), sampler.log_q_own(items, POOL)).isfinite().all()
