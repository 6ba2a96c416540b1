""""""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.negatives.support import assert_share, real, seeded
from weir.trainer.losses import ItemCache, exclude_positive, resample, resampling_log_weights
from weir.trainer.negatives import InBatch, Mixed, Pool, Uniform, shared_pool
from weir.trainer.negatives.mixed import Cached
from weir.trainer.settings.trainer import NegativesConfig

Q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
LOGITS = torch.tensor([0.3, -0.5, 1.0, 2.0], dtype=torch.float64)
ITEMS = torch.arange(4)


def test_the_pool_is_the_batch_and_then_the_uniform_draws() -> None:
    positives, mask = torch.tensor([2, 0, 2]), torch.tensor([True, False, True])
    uniform = Uniform(ITEMS, 5)
    items, found = Mixed(InBatch(Q.log()), uniform).draw(positives, mask, seeded())
    assert torch.equal(items, torch.cat([positives, uniform.draw(positives, mask, seeded()).items]))
    assert found.tolist() == [True, False, True] + [True] * 5


@pytest.mark.parametrize("limit", [None, 6])
def test_frequencies_follow_the_mixture(limit: int | None) -> None:
    sampler, draw, batch = Mixed(InBatch(Q.log(), limit), Uniform(ITEMS, 10)), seeded(), 20
    counts = torch.zeros(4, dtype=torch.float64)
    for _ in range(3_000):
        positives = torch.multinomial(Q, batch, replacement=True, generator=draw)
        counts += torch.bincount(sampler.draw(positives, real(batch), draw).items, minlength=4)
    density = sampler.log_q(ITEMS, Pool(batch, 4)).exp()
    assert float(density.sum()) == pytest.approx(1)
    assert counts.sum() == 3_000 * ((limit or batch) + 10)
    assert_share(counts / counts.sum(), density, int(counts.sum()))


def test_without_duplicates_the_expected_number_of_an_item_is_what_the_density_says() -> None:
    sampler, draw, batch, steps = Mixed(InBatch(Q.log(), deduplicate=True), Uniform(ITEMS, 2)), seeded(2), 5, 5_000
    counts, expected = torch.zeros(4, dtype=torch.float64), 1 - (1 - Q) ** batch + 2 / 4
    for _ in range(steps):
        positives = torch.multinomial(Q, batch, replacement=True, generator=draw)
        items, _ = sampler.draw(positives, real(batch), draw)
        counts += torch.bincount(items, minlength=4)
        pool = Pool.of(positives, real(batch))
        torch.testing.assert_close(sampler.log_q(ITEMS, pool).exp() * len(items), expected)
    # One in the batch or none, and two uniform draws: a variance of 1/4 + 2 * 3/16 at most.
    assert ((counts / steps - expected).abs() < 5 * (0.625 / steps) ** 0.5).all()


def test_the_sum_over_the_catalogue_is_estimated_without_bias() -> None:
    """Enumerate all batches of three and all pairs of uniform draws as a row with positive 1 sees them."""
    sampler, own = Mixed(InBatch(Q.log(), deduplicate=True), Uniform(ITEMS, 2)), torch.tensor([1])
    mean = 0.0
    for others, uniform in itertools.product(itertools.product(range(4), repeat=2), repeat=2):
        positives = torch.tensor([1, *others])
        pool = Pool.of(positives, real(3)).others
        items = torch.cat([torch.unique(positives), torch.tensor(uniform)])
        items = items[items != 1]
        log_q = exclude_positive(sampler.log_q(items, pool), sampler.log_q_own(own, pool))[0]
        kept = pool.distinct - 1 + 2 * 3 / 4
        mean += math.prod(Q[list(others)].tolist()) / 16 * float((LOGITS[items] - log_q).exp().sum()) / kept
    # All but exact: where the batch holds the positive alone, its density is kept a millionth below 1.
    assert mean == pytest.approx(float(LOGITS.exp().sum() - LOGITS[1].exp()), rel=1e-6)


def test_unigram_is_the_density_of_the_batch_for_both_halves() -> None:
    sampler, pool = Mixed(InBatch(Q.log()), Uniform(ITEMS, 10), "unigram"), Pool(20, 4)
    assert torch.equal(sampler.log_q(ITEMS, pool), Q.log())
    assert torch.equal(sampler.log_q_own(ITEMS, pool), Q.log())


@given(batch=st.integers(1, 9), count=st.integers(1, 9), deduplicate=st.booleans(), limit=st.none() | st.integers(1, 5))
def test_a_rows_view_is_a_density_that_leaves_the_others(
    batch: int, count: int, deduplicate: bool, limit: int | None
) -> None:
    """Whatever the sizes, the row's own positive can be taken out, and every other item has a finite density."""
    positives = torch.multinomial(Q, batch, replacement=True, generator=seeded(batch))
    sampler = Mixed(InBatch(Q.log(), limit, deduplicate), Uniform(ITEMS, count))
    pool = Pool.of(positives, real(batch)).others
    log_q = exclude_positive(sampler.log_q(ITEMS, pool), sampler.log_q_own(positives, pool))
    assert log_q.isfinite().all()
    if not deduplicate:
        assert (log_q.exp().sum(1) - log_q.exp().gather(1, positives[:, None])[:, 0]).tolist() == pytest.approx(
            [1.0] * batch
        )


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


POOL = Pool(4, 4)


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
