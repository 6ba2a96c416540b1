import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.ranking import Lists


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99))), st.lists(st.integers(0, 5), max_size=8))
def test_lists_give_back_what_was_grouped(pairs: list[tuple[int, int]], numbers: list[int]) -> None:
    keys, values = np.array(pairs, np.int64).reshape(-1, 2).T
    grouped = Lists.grouped(keys, values, 6)
    taken, place = grouped.take(np.array(numbers, np.int64))
    expected = [(at, value) for at, number in enumerate(numbers) for key, value in pairs if key == number]
    assert list(zip(place.tolist(), taken.tolist(), strict=True)) == expected
    assert len(grouped) == 6
