from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts.checkpoint import CheckpointRef
from weir.trainer.items.rows import no_rows
from weir.trainer.state.saved import Layout, SavedChain

LAYOUT = Layout(400, {})
WINDOWS = st.lists(st.sets(st.integers(0, 399), max_size=30), max_size=40)


def named(number: int) -> CheckpointRef:
    return CheckpointRef(name=str(number), checksum="")


@given(WINDOWS)
def test_a_chain_holds_every_row_since_the_whole_one_and_is_short(windows: list[set[int]]) -> None:
    whole = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    chain, since = whole, set[int]()
    for number, touched in enumerate(windows, start=1):
        since |= touched
        found = chain.continued(LAYOUT, np.array(sorted(touched), np.int64))
        if found is None:
            # Repeated rows count: there are never more than three times as many as rows.
            assert len(since) > 100 / 3
            chain, since = whole, set()
            continue
        chain = found[0].extended(named(number), found[1])
        deltas = [link.rows for link in chain.links[1:]]
        assert set(np.concatenate(deltas).tolist()) == since
        sizes = [len(rows) for rows in deltas]
        assert sum(sizes) <= 100
        assert all(earlier > 2 * later for earlier, later in pairwise(sizes))
        assert set(deltas[-1].tolist()) >= touched


def test_windows_that_touch_the_same_rows_make_one_delta() -> None:
    chain = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    for number in range(1, 50):
        found = chain.continued(LAYOUT, np.arange(60))
        assert found is not None
        chain = found[0].extended(named(number), found[1])
        assert [link.checkpoint.name for link in chain.links] == ["0", str(number)]


def test_another_layout_is_not_continued() -> None:
    chain = SavedChain(LAYOUT, ()).extended(named(0), no_rows())
    assert chain.continued(Layout(800, {}), np.arange(3)) is None
    assert chain.continued(LAYOUT, np.arange(3)) is not None
