import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.items.live import live_rows
from weir.trainer.items.live_rows import LiveRows
from weir.trainer.items.places import Places
from weir.trainer.items.rows import FIRST_ITEM, TableRows

CHANGES = st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 60))), max_size=12)


@given(CHANGES)
def test_the_lowest_free_rows_are_taken_as_from_a_set(changes: list[tuple[int, set[int]]]) -> None:
    live, held = LiveRows(), set[int]()
    for count, freed in changes:
        free = (row for row in range(FIRST_ITEM, FIRST_ITEM + 1000) if row not in held)
        wanted = [next(free) for _ in range(count)]
        live, taken = live.taken(count)
        assert taken.tolist() == wanted
        held |= set(wanted)
        gone = sorted(freed & held)
        live = live.freed(TableRows(np.array(gone, np.int64)))
        held -= set(gone)
        assert len(live) == len(held)
        assert live.every().tolist() == sorted(held)
        assert live[torch.arange(len(live))].tolist() == sorted(held)
        asked = torch.arange(80).view(4, 20)
        assert live.among(asked).tolist() == [[row in held for row in line] for line in asked.tolist()]


@given(st.sets(st.integers(FIRST_ITEM, 50)))
def test_rows_are_those_that_are_not_free(rows: set[int]) -> None:
    live = live_rows(rows)
    assert live.every().tolist() == sorted(rows)
    assert len(live) == len(rows)


@given(st.sets(st.integers(FIRST_ITEM, 63)), st.integers(1, 5))
def test_each_rank_has_its_rows_in_the_order_of_its_lines(rows: set[int], ranks: int) -> None:
    live, found = live_rows(rows), list[int]()
    for rank in range(ranks):
        places = Places(64, rank, ranks)
        own = live.at(places)
        lines = places.local(own)
        assert ((lines >= 0) & (lines < len(places.here))).all()
        assert (lines.diff() > 0).all()
        found += own.tolist()
    assert sorted(found) == sorted(rows)


def test_an_index_of_any_shape_is_answered() -> None:
    live = LiveRows(10, np.array([3, 4, 8]))
    assert live[torch.tensor([[0, 1], [2, 4]])].tolist() == [[2, 5], [6, 9]]
