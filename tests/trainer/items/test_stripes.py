import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.rows import TableRows
from weir.trainer.items.stripes import Stripes


@given(st.integers(1, 6), st.integers(0, 40))
def test_each_row_has_a_line_on_one_rank(ranks: int, capacity: int) -> None:
    rows, found = TableRows(np.arange(capacity)), []
    for rank in range(ranks):
        stripes = Stripes(rank, ranks)
        own = TableRows(rows[stripes.own(rows)])
        assert stripes.lines(own).tolist() == list(range(stripes.count(capacity)))
        assert stripes.rows(stripes.lines(own)).tolist() == own.tolist()
        assert (stripes.owners(own) == rank).all()
        found += own.tolist()
    assert sorted(found) == rows.tolist()
