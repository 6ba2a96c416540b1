from benchmarks.exchanges import measured


def test_both_ways_are_measured_with_real_ranks() -> None:
    figures = measured(2, 8, 2, 1)
    assert figures.shape == (2, 2)
    assert (figures > 0).all()
