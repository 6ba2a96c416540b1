import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.items.places import Places
from weir.trainer.stream.own_items import OwnItems

CAPACITY = 64


@given(st.integers(0, 10_000), st.integers(0, 20), st.booleans())
def test_more_popular_items_are_counted_whichever_rank_keeps_them(seed: int, items: int, hides: bool) -> None:
    draw = np.random.default_rng(seed)
    rows = np.sort(draw.choice(np.arange(2, CAPACITY), items, replace=False))
    counts, asked = draw.integers(0, 4, items) / 2, draw.integers(2, CAPACITY, 7)
    often = draw.integers(0, 8, 7) / 4
    hidden = np.stack([draw.permutation(np.arange(-1, items))[:3] for _ in asked]) if hides and items > 1 else None
    own = OwnItems(torch.from_numpy(rows), torch.from_numpy(counts), Places(CAPACITY))
    found = own.more_popular(
        torch.from_numpy(asked), torch.from_numpy(often), None if hidden is None else torch.from_numpy(hidden)
    )
    for number, (row, count) in enumerate(zip(asked.tolist(), often.tolist(), strict=True)):
        barred = set() if hidden is None else set(hidden[number].tolist())
        kept = [(-counts[c], rows[c]) for c in range(items) if c not in barred]
        assert found[number] == sum(pair < (-count, row) for pair in kept)


@given(st.sets(st.integers(2, CAPACITY - 1)), st.integers(1, 3))
def test_columns_are_found_by_row(rows: set[int], ranks: int) -> None:
    found = dict[int, int]()
    for rank in range(ranks):
        places = Places(CAPACITY, rank, ranks)
        every = places.rows_at(torch.arange(len(places.here)))
        held = every[torch.isin(every, torch.tensor(sorted(rows), dtype=torch.int64))]
        columns = OwnItems(held, torch.ones(len(held)), places).columns(torch.arange(CAPACITY))
        for row in range(CAPACITY):
            if columns[row] >= 0:
                assert held[columns[row]] == row
                found[row] = rank
    assert found.keys() == rows
