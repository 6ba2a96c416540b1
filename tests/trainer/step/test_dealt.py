import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.ranks.workers import Workers
from weir.trainer.step.dealt import Dealt


@given(st.data(), st.integers(0, 30), st.integers(4, 9), st.integers(1, 4))
def test_the_shares_of_all_ranks_are_the_batches(data: st.DataObject, count: int, size: int, ranks: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt = [Dealt(order, size, Workers(rank, ranks)) for rank in range(ranks)]
    assert sum(one.lines for one in dealt) == len(order)
    for one in dealt:
        found = list(one.batches(0))
        assert [number for chosen in found for number in chosen.tolist()] == order.tolist()
        assert [part.tolist() for part in one.batches(1)] == [part.tolist() for part in found[1:]]
        assert one.lines == sum(len(chosen[one.here.start : one.here.stop]) for chosen in found)
        places = one.places(count)
        assert {int(number): place for place, number in enumerate(order)} == {
            number: place for number, place in enumerate(places.tolist()) if place >= 0
        }


@given(st.data(), st.integers(0, 30), st.integers(1, 9))
def test_a_rank_alone_keeps_the_lines_that_have_a_place(data: st.DataObject, count: int, size: int) -> None:
    order = np.array(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))], np.int64)
    dealt, lines = Dealt(order, size, Workers()), 10 * np.arange(count, dtype=np.int32)[:, None]
    came = dealt.exchanged(dealt.places(count), lines)
    assert sorted(came.tolist()) == [[place, 10 * number] for place, number in enumerate(order.tolist())]
