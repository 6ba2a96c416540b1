import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.items.rows import TouchedRows

CALLS = st.lists(st.one_of(st.lists(st.integers(0, 9)), st.just("clear"), st.just("grow")), max_size=20)


@given(CALLS)
def test_touched_rows_are_what_a_set_would_hold(calls: list[list[int] | str]) -> None:
    touched, held, capacity = TouchedRows(10), set[int](), 10
    for call in calls:
        if call == "clear":
            touched.clear()
            held.clear()
        elif call == "grow":
            capacity *= 2
            touched.grow(capacity)
            touched.mark(np.array([capacity - 1]))
            held.add(capacity - 1)
        else:
            touched.mark(np.array(call, np.int64))
            held.update(map(int, call))
        assert touched.rows().tolist() == sorted(held)
