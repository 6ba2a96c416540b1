import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.places import Places

RANKS = st.integers(1, 9)
POWERS = st.integers(4, 12).map(lambda power: 1 << power)


@given(capacity=POWERS, ranks=RANKS)
def test_every_row_is_at_one_rank_which_finds_it_among_its_lines(capacity: int, ranks: int) -> None:
    every = torch.arange(capacity)
    found = []
    for rank in range(ranks):
        places = Places(capacity, rank, ranks)
        rows = every[places.own(every)]
        assert sorted(places.local(rows).tolist()) == list(range(len(places.here)))
        assert torch.equal(places.rows_at(places.local(rows)), rows)
        found += rows.tolist()
    assert sorted(found) == every.tolist()


@given(capacity=POWERS, ranks=RANKS)
def test_places_are_a_permutation_and_ranges_follow_one_another(capacity: int, ranks: int) -> None:
    every = torch.arange(capacity)
    places = [Places(capacity, rank, ranks) for rank in range(ranks)]
    assert torch.equal(places[0].of(every).sort().values, every)
    assert torch.equal(places[0].rows(places[0].of(every)), every)
    assert [place for one in places for place in one.here] == every.tolist()
    assert max(len(one.here) for one in places) - min(len(one.here) for one in places) <= 1


@given(capacity=POWERS)
def test_when_the_table_doubles_a_row_stays_or_moves_by_the_old_capacity(capacity: int) -> None:
    every = torch.arange(capacity)
    assert torch.equal(Places(2 * capacity).of(every) % capacity, Places(capacity).of(every))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_lowest_rows_which_are_those_of_the_oldest_items_are_spread_evenly(ranks: int) -> None:
    low = torch.arange(1 << 12)
    shares = [len(Places(1 << 20, rank, ranks).own(low)) for rank in range(ranks)]
    assert min(shares) > 0.95 * len(low) / ranks


@given(rows=st.lists(st.integers(0, 63)), ranks=RANKS)
def test_distinct_rows_ascend_by_key(rows: list[int], ranks: int) -> None:
    places = Places(64, 0, ranks)
    found, place = places.distinct(torch.tensor(rows, dtype=torch.int64))
    assert sorted(found.tolist()) == sorted(set(rows))
    assert (places.key(found).diff() > 0).all()
    assert found[place].tolist() == rows


def test_one_rank_has_all_rows_in_their_order() -> None:
    rows = torch.tensor([5, 0, 3])
    alone = Places(7)
    assert alone.local(rows) is alone.rows_at(rows) is rows
    assert alone.own(rows).tolist() == [0, 1, 2]


def test_several_ranks_share_powers_of_two_only() -> None:
    with pytest.raises(ValueError, match="capacity = 12: 3 ranks share a power of two only"):
        Places(12, 0, 3)
