import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.negatives.support import assert_share, real, seeded
from weir.trainer.losses import exclude_positive, sampled_softmax
from weir.trainer.negatives import InBatch, Pool
from weir.trainer.negatives.in_batch import log_inclusion

Q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
LOGITS = torch.tensor([0.3, -0.5, 1.0, 2.0], dtype=torch.float64)
ITEMS = torch.arange(4)
OWN = 1
"""The positive of the row that looks at the batch."""


def batches_of(others: int) -> list[tuple[Tensor, float]]:
    """List every batch of a row with positive `OWN` and independent others, with its probability."""
    drawn = itertools.product(range(4), repeat=others)
    return [(torch.tensor([OWN, *items]), math.prod(Q[list(items)].tolist())) for items in drawn]


def estimate(sampler: InBatch, items: Tensor, pool: Pool) -> float:
    """Return what `sampled_softmax` takes for the sum of e^f over the other items; 0 without any."""
    items = items[items != OWN]
    if not len(items):
        return 0.0
    log_q = exclude_positive(sampler.log_q(items, pool), sampler.log_q_own(torch.tensor([OWN]), pool))[0]
    return float((LOGITS[items] - log_q).exp().mean())


def test_all_positives_stand_in_order() -> None:
    positives, mask = torch.tensor([2, 0, 2, 1]), torch.tensor([True, True, True, False])
    items, found = InBatch(Q.log()).draw(positives, mask, seeded())
    assert torch.equal(items, positives)
    assert torch.equal(found, mask)


@pytest.mark.parametrize("limit", [None, 5])
def test_with_duplicates_frequencies_follow_the_stream(limit: int | None) -> None:
    sampler, draw, steps, batch = InBatch(Q.log(), limit), seeded(), 3_000, 20
    counts = torch.zeros(4, dtype=torch.float64)
    for _ in range(steps):
        positives = torch.multinomial(Q, batch, replacement=True, generator=draw)
        counts += torch.bincount(sampler.draw(positives, real(batch), draw).items, minlength=4)
    density = sampler.log_q(ITEMS, Pool(batch, 4)).exp()
    assert torch.equal(sampler.log_q_own(ITEMS, Pool(batch, 4)).exp(), density)
    assert counts.sum() == steps * (limit or batch)
    assert_share(counts / counts.sum(), density, int(counts.sum()))


@pytest.mark.parametrize("limit", [None, 2])
def test_without_duplicates_frequencies_follow_the_inclusion(limit: int | None) -> None:
    """An item is drawn with probability size / m from a pool that holds it with probability pi = m Q."""
    sampler, draw, steps, batch = InBatch(Q.log(), limit, deduplicate=True), seeded(1), 5_000, 5
    counts, pi = torch.zeros(4, dtype=torch.float64), 1 - (1 - Q) ** batch
    for _ in range(steps):
        positives = torch.multinomial(Q, batch, replacement=True, generator=draw)
        pool = Pool.of(positives, real(batch))
        items = sampler.draw(positives, real(batch), draw).items
        assert len(items) == len(set(items.tolist())) == sampler.size(pool)
        counts += torch.bincount(items, minlength=4) * (pool.distinct / sampler.size(pool))
        torch.testing.assert_close(sampler.log_q(ITEMS, pool).exp() * pool.distinct, pi)
    # A term is at most twice as large as where all are taken, so its deviation is too.
    assert ((counts / steps - pi).abs() < 5 * (2 * pi / steps).sqrt()).all()


@pytest.mark.parametrize("deduplicate", [False, True])
def test_the_sum_over_the_catalogue_is_estimated_without_bias(deduplicate: bool) -> None:
    """Enumerate all batches as a row sees them: with its own positive for certain, and four others."""
    sampler, wanted = InBatch(Q.log(), deduplicate=deduplicate), float(LOGITS.exp().sum() - LOGITS[OWN].exp())
    mean, missing = 0.0, 0.0
    for positives, chance in batches_of(4):
        pool = Pool.of(positives, real(5)).others
        mean += chance * estimate(sampler, sampler.draw(positives, real(5), seeded()).items, pool)
        missing += chance * bool((positives == OWN).all())
    # Without duplicates a batch of nothing else is one of the outcomes; with them the others are what they are.
    assert mean == pytest.approx(wanted * (1 if deduplicate else 1 - missing), rel=1e-12)


def test_a_limit_keeps_the_estimate_without_bias() -> None:
    sampler, wanted = InBatch(Q.log(), 2, deduplicate=True), float(LOGITS.exp().sum() - LOGITS[OWN].exp())
    mean = 0.0
    for positives, chance in batches_of(3):
        pool, distinct = Pool.of(positives, real(4)), torch.unique(positives).tolist()
        subsets = list(itertools.combinations(distinct, sampler.size(pool)))
        mean += chance * sum(estimate(sampler, torch.tensor(s), pool.others) for s in subsets) / len(subsets)
    assert mean == pytest.approx(wanted, rel=1e-12)


def test_the_density_of_the_stream_is_wrong_without_duplicates() -> None:
    plain, sampler = InBatch(Q.log()), InBatch(Q.log(), deduplicate=True)
    wanted = float(LOGITS.exp().sum() - LOGITS[OWN].exp())
    mean = sum(
        chance * estimate(plain, sampler.draw(positives, real(5), seeded()).items, Pool.of(positives, real(5)))
        for positives, chance in batches_of(4)
    )
    assert mean > 1.1 * wanted


def test_the_gradient_is_that_of_the_full_softmax() -> None:
    """The improved loss of a large batch without duplicates; the density of the stream leads elsewhere."""
    q = torch.logspace(0, -2, 300, dtype=torch.float64)
    q, draw = q / q.sum(), seeded(4)
    logits = torch.randn(300, generator=draw, dtype=torch.float64)
    own, batch, steps = torch.tensor([5]), 2_000, 100
    wanted = logits.softmax(0)
    wanted[own] -= 1
    samplers = InBatch(q.log(), deduplicate=True), InBatch(q.log())
    mean = torch.zeros(2, 300, dtype=torch.float64)
    for _ in range(steps):
        positives = torch.cat([own, torch.multinomial(q, batch - 1, replacement=True, generator=draw)])
        items, pool = samplers[0].draw(positives, real(batch), draw).items, Pool.of(positives, real(batch)).others
        for row, sampler in enumerate(samplers):
            leaf = logits.clone().requires_grad_()
            log_q = exclude_positive(sampler.log_q(items, pool), sampler.log_q_own(own, pool))
            loss = sampled_softmax(leaf[own], leaf[items][None], log_q_neg=log_q, keep=(items != own)[None])
            mean[row] += torch.autograd.grad(loss.sum(), leaf)[0] / steps
    errors = (mean - wanted).norm(dim=1) / wanted.norm()
    # The first is what is left of the noise: it halves with four times the steps, the second stays.
    assert errors[0] < 0.01
    assert errors[1] > 0.05


@given(
    positives=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    limit=st.none() | st.integers(1, 6),
    deduplicate=st.booleans(),
    data=st.data(),
)
def test_padding_is_never_drawn_and_the_limit_holds(
    positives: list[int], limit: int | None, deduplicate: bool, data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(positives), max_size=len(positives)))
    items, rows = torch.tensor(positives), torch.tensor(mask)
    sampler, pool = InBatch(Q.log(), limit, deduplicate), Pool.of(items, rows)
    first, second = (sampler.draw(items, rows, seeded(3)) for _ in range(2))
    assert torch.equal(first.items, second.items)
    drawn, there = first.items[first.real].tolist(), items[rows].tolist()
    assert len(drawn) == sampler.size(pool) == min(limit or 99, len(set(there)) if deduplicate else len(there))
    assert all(drawn.count(item) <= (1 if deduplicate else there.count(item)) for item in drawn)


def test_inclusion_is_exact_for_tiny_and_for_certain_items() -> None:
    log_q = torch.tensor([-600.0, -100.0, math.log(0.25), 0.0], dtype=torch.float64)
    found = log_inclusion(log_q, 512)
    wanted = [math.log(512) - 600, math.log(512) - 100, math.log(1 - 0.75**512), 0.0]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (log_inclusion(log_q, 0) == -torch.inf).all()


def test_a_batch_of_one_row_can_still_be_excluded() -> None:
    sampler, item = InBatch(Q.log(), deduplicate=True), torch.tensor([OWN])
    pool = Pool.of(item, real(1)).others
    assert pool == Pool(0, 1)
    loss = sampled_softmax(
        torch.zeros(1),
        torch.zeros(1, 1),
        log_q_neg=exclude_positive(sampler.log_q(item, pool), sampler.log_q_own(item, pool)),
        keep=torch.zeros(1, 1, dtype=torch.bool),
    )
    assert loss.tolist() == [0.0]


def test_refuses() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1, or None for no limit, got 0"):
        InBatch(Q.log(), 0)
