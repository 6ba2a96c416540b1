""""""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.rows import Reader, RowSharding, TableRows, TouchedRows

CALLS = st.lists(
    st.one_of(st.lists(st.integers(0, 9)), st.sampled_from(Reader), st.sampled_from(["grow", "replace"])), max_size=20
)


@given(CALLS)
def test_touched_rows_are_what_a_set_of_each_reader_would_hold(calls: list[list[int] | Reader | str]) -> None:
    """The one for snapshots comes with a clear, and goes when its rows become those for bundles."""
    touched, held, capacity = TouchedRows(10), {Reader.CHECKPOINT: set[int](), Reader.BUNDLE: set[int]()}, 10
    for call in calls:
        if isinstance(call, Reader):
            touched.clear(call)
            held[call] = set()
            continue
        if call == "replace":
            if Reader.SNAPSHOT in held:
                touched.replace(Reader.BUNDLE, Reader.SNAPSHOT)
                held[Reader.BUNDLE] = held.pop(Reader.SNAPSHOT)
            continue
        if call == "grow":
            capacity *= 2
            touched.grow(capacity)
        marked = [capacity - 1] if call == "grow" else list(map(int, call))
        touched.mark(np.array(marked, np.int64))
        for rows in held.values():
            rows.update(marked)
        assert {*touched.readers} == {*held}
        for reader in Reader:
            assert touched.rows(reader).tolist() == sorted(held.get(reader, ()))


@given(st.integers(1, 6), st.integers(0, 40))
def test_each_row_has_a_line_on_one_rank(ranks: int, capacity: int) -> None:
    rows, found = TableRows(np.arange(capacity)), []
    for rank in range(ranks):
        stripes = RowSharding(rank, ranks)
        own = TableRows(rows[stripes.own(rows)])
        assert stripes.lines(own).tolist() == list(range(stripes.count(capacity)))
        assert stripes.rows(stripes.lines(own)).tolist() == own.tolist()
        assert (stripes.owners(own) == rank).all()
        found += own.tolist()
    assert sorted(found) == rows.tolist()
