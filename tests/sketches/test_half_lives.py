import numpy as np
import pytest

from weir.sketches.half_lives import agreed, longest_agreeing, to_longest


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
