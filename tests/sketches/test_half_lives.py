import numpy as np
import pytest

from sketches import ExactCounter
from sketches.half_lives import agreed_counts, longest_agreeing


def counter(*counts: int) -> ExactCounter:
    found = ExactCounter()
    found.update(np.repeat(np.arange(1, len(counts) + 1), counts))
    return found


def test_a_key_takes_the_longest_memory_that_agrees_with_all_shorter() -> None:
    # Half a standard deviation apart, and four; a third memory that agrees with the second alone does not count.
    short, middle, long = np.array([0.10, 0.10, 0.10]), np.array([0.11, 0.20, 0.19]), np.array([0.11, 0.20, 0.19])
    noises = [2e-3, 2e-3, 2e-3]
    assert longest_agreeing([short, middle, long], noises).tolist() == [0.11, 0.10, 0.10]
    # The longest may agree with both where the middle one does not.
    assert longest_agreeing([short, middle, short], noises)[2] == 0.10


def test_counts_are_events_of_the_longest_memory() -> None:
    asked = np.array([1, 2, 9])
    short, long = counter(8, 2), counter(30, 70)
    # Without noise nothing agrees: the shares of the short memory, 0.8 and 0.2, of the 100 events of the long one.
    np.testing.assert_allclose(agreed_counts(asked, [short, long], [0.0, 0.0]), [80, 20, 0])
    # With much, everything does.
    np.testing.assert_allclose(agreed_counts(asked, [short, long], [1e3, 1e3]), [30, 70, 0])


def test_a_single_memory_needs_no_noise_and_own_events_are_subtracted() -> None:
    asked = np.array([1, 2, 9])
    assert agreed_counts(asked, [counter(3, 1)], [0.0]).tolist() == [3, 1, 0]
    assert agreed_counts(asked, [counter(3, 1)], [0.0], own=1.5).tolist() == [1.5, 0, 0]


@pytest.mark.parametrize("memories", [1, 2])
def test_without_events_all_counts_are_zero(memories: int) -> None:
    assert agreed_counts(np.array([1]), [ExactCounter()] * memories, [0.0] * memories).tolist() == [0]
