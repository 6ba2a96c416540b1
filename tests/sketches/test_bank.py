""""""

import itertools

import numpy as np
import pytest

from tests.sketches.support import F64, I64, zipf
from weir.sketches import ExactCounter, FrequencyBank
from weir.sketches.bank import agreed, longest_agreeing, to_longest

EPOCH = 40_000


def drifting(epochs: int, items: int = 4_000) -> list[tuple[I64, F64]]:
    """Per epoch, the events and the true log Q of each; 30 % of the items swap popularity between epochs."""
    rng = np.random.default_rng(5)
    law = np.arange(1, items + 1) ** -1.05
    law /= law.sum()
    item_at = rng.permutation(items)
    stream = []
    for epoch in range(epochs):
        if epoch:
            moved = rng.choice(items, int(0.3 * items), replace=False)
            item_at[moved] = item_at[rng.permutation(moved)]
        ranks = np.minimum(np.searchsorted(np.cumsum(law), rng.random(EPOCH)), items - 1)
        stream.append((item_at[ranks].astype(np.int64), np.log(law[ranks])))
    return stream


def prequential_error(bank: FrequencyBank, *, leave_one_out: bool = True) -> float:
    errors = []
    for epoch, (keys, truth) in enumerate(drifting(4)):
        for batch, expected in zip(np.array_split(keys, 20), np.array_split(truth, 20), strict=True):
            bank.update(batch)
            if epoch:
                errors.append(np.abs(bank.log_q(batch, leave_one_out=leave_one_out) - expected).mean())
    return float(np.mean(errors))


def test_bank_beats_every_single_half_life_under_drift() -> None:
    half_lives = [0.05 * EPOCH, 0.2 * EPOCH, 0.8 * EPOCH]
    bank = prequential_error(FrequencyBank(half_lives, 1 << 13))
    single = min(prequential_error(FrequencyBank([life], 1 << 13)) for life in [*half_lives, 0.5 * EPOCH])
    assert bank < 0.75 * single


def test_leaving_the_own_occurrence_out_helps_rare_items() -> None:
    bank = FrequencyBank([1e4, 1e5], 1 << 16)
    truth = ExactCounter()
    events = zipf(100_000, 1_000_000, 0.8)
    truth.update(events)
    for batch in np.array_split(events[:50_000], 5):
        bank.update(batch)
    expected = truth.log_q(batch)
    with_own = np.abs(bank.log_q(batch) - expected).mean()
    assert np.abs(bank.log_q(batch, leave_one_out=True) - expected).mean() < 0.9 * with_own


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_decay_goes_event_by_event_however_batches_are_cut(size: int) -> None:
    events, half_life = zipf(50, 1000, 1.0), 80.0
    bank = FrequencyBank([half_life], 1 << 12)
    for start in range(0, events.size, size):
        bank.update(events[start : start + size])
    truth = np.zeros(50)
    for event in events:
        truth *= 0.5 ** (1 / half_life)
        truth[event] += 1
    np.testing.assert_allclose(bank.estimate(np.arange(50)), truth, rtol=1e-3, atol=1e-3)
    assert (bank.estimate(np.arange(50)) >= truth * (1 - 1e-9)).all()
    assert bank.total == pytest.approx(truth.sum(), rel=1e-9)


def test_weights_age_the_stream_by_their_size() -> None:
    heavy, repeated = FrequencyBank([30.0], 1 << 10), FrequencyBank([30.0], 1 << 10)
    heavy.update([1, 2, 1], [10.0, 20.0, 0.0])
    repeated.update(np.repeat([1, 2], [10, 20]))
    # Inside a weight nothing ages, so the two differ by less than the weight's own decay.
    assert heavy.estimate([1])[0] == pytest.approx(10 * 0.5 ** (20 / 30))
    assert repeated.estimate([1])[0] == pytest.approx(heavy.estimate([1])[0], rel=0.15)


def test_steady_keys_are_read_from_the_longest_and_changed_ones_from_a_shorter() -> None:
    bank = FrequencyBank([200.0, 20_000.0], 1 << 12)
    bank.update(np.tile([1, 2, 2, 2], 5_000))
    bank.update(np.tile([1, 3, 3, 3], 500))
    share = bank.estimate([1, 2, 3]) / bank.total
    np.testing.assert_allclose(share, [0.25, 0.0, 0.75], atol=0.02)


def test_extreme_batches_leave_a_sound_state() -> None:
    bank = FrequencyBank([1.0, 1e9], 64, 2)
    bank.update(np.arange(20_000))
    bank.update([5], [2.0**31])
    assert np.isfinite(bank.log_q(np.arange(10))).all()
    assert bank.estimate([5])[0] > 2.0**30


def test_width_is_shared_out() -> None:
    bank = FrequencyBank([1.0, 2.0, 3.0], 1 << 17)
    assert bank.nbytes == 4 << 20
    assert len(bank.to_bytes()) <= bank.nbytes + 4096
    assert bank.half_lives == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("half_lives", [[], [0.0], [-1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [float("nan")]])
def test_half_lives_are_positive_and_ascending(half_lives: list[float]) -> None:
    with pytest.raises(ValueError, match="half_lives"):
        FrequencyBank(half_lives, 64)


def test_merging_what_differs_names_the_difference() -> None:
    banks = [FrequencyBank([1.0], 64), FrequencyBank([2.0], 64), FrequencyBank([1.0], 128), FrequencyBank([1.0], 64, 2)]
    for left, right in itertools.permutations(banks, 2):
        with pytest.raises(ValueError, match=r"half_lives|width|depth"):
            left.merge(right)


def test_merge_adds_rates_of_shards() -> None:
    left, right = FrequencyBank([1e3, 1e5], 1 << 12), FrequencyBank([1e3, 1e5], 1 << 12)
    left.update(np.tile([1, 2], 1_000))
    right.update(np.tile([1, 3], 1_000))
    left.merge(right)
    np.testing.assert_allclose(left.estimate([1, 2, 3]) / left.total, [0.5, 0.25, 0.25], rtol=1e-3)


def test_a_key_takes_the_longest_memory_that_agrees_with_all_shorter() -> None:
    # Half a standard deviation apart, and four; a third memory that agrees with the second alone does not count.
    short, middle, long = np.array([0.10, 0.10, 0.10]), np.array([0.11, 0.20, 0.19]), np.array([0.11, 0.20, 0.19])
    noises = [2e-3, 2e-3, 2e-3]
    assert longest_agreeing([short, middle, long], noises).tolist() == [2, 0, 0]
    # The longest may agree with both where the middle one does not agree with the shortest.
    assert longest_agreeing([np.array([0.10]), np.array([0.14]), np.array([0.12])], noises).tolist() == [2]
    assert longest_agreeing([np.array([0.10]), np.array([0.14])], noises[:2]).tolist() == [0]


def test_counts_are_events_of_the_longest_memory() -> None:
    short, long = np.array([8.0, 2.0, 0.0]), np.array([30.0, 70.0, 0.0])
    # Without noise nothing agrees: the shares of the short memory, 0.8 and 0.2, of the 100 events of the long one.
    np.testing.assert_allclose(agreed([short, long], [10, 100], [0.0, 0.0]), [80, 20, 0])
    # With much, everything does.
    np.testing.assert_allclose(agreed([short, long], [10, 100], [1e3, 1e3]), [30, 70, 0])
    assert to_longest([10, 100]) == [10, 1]


def test_a_single_memory_needs_no_noise() -> None:
    assert agreed([np.array([3.0, 1.0, 0.0])], [4], [0.0]).tolist() == [3, 1, 0]


@pytest.mark.parametrize("memories", [1, 2])
def test_without_events_all_counts_are_zero(memories: int) -> None:
    assert agreed([np.zeros(1)] * memories, [0.0] * memories, [0.0] * memories).tolist() == [0]
