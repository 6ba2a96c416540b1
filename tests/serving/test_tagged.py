from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.deltas import base, changed, drawn, write_delta
from tests.serving.tagging import Described
from weir.contracts import BundleLog, Store
from weir.serving.loading import load_bundle
from weir.serving.rowsets import bits_of, rows_in, rowset
from weir.serving.tagged import TaggedRows, moved_rows

TAGS = ["jazz", "blues", "new"]


def described(rng: np.random.Generator, items: list[str]) -> Described:
    """Give items random tags, and some of them limits."""
    tags = {item: rng.choice(TAGS, rng.integers(0, 4), replace=False).tolist() for item in items if rng.random() < 0.9}
    limits = {item: (int(rng.integers(0, 50)), int(rng.integers(50, 100))) for item in items if rng.random() < 0.2}
    return Described(tags, limits)


def assert_right(tagged: TaggedRows, says: Described, ids: list[str]) -> None:
    """Compare with a look at every row; a row without an item has an empty id."""
    live = [row for row, item in enumerate(ids) if item]
    assert rows_in(tagged.live).tolist() == live
    for tag in TAGS:
        expected = [row for row in live if tag in says.tags.get(ids[row], ())]
        assert rows_in(tagged.tags.get(tag, rowset(np.empty(0, np.int64)))).tolist() == expected
    for now in (0, 25, 49, 50, 75, 100):
        closed = [row for row in live if ids[row] in says.limits and not _open(says.limits[ids[row]], now)]
        assert rows_in(tagged.limited.closed(now)).tolist() == closed
        bounds = [time for row in live if ids[row] in says.limits for time in says.limits[ids[row]]]
        assert tagged.limited.next_change(now) == min([t for t in bounds if t > now], default=2**63 - 1)


def _open(limits: tuple[int | None, int | None], now: int) -> bool:
    assert limits[0] is not None
    assert limits[1] is not None
    return limits[0] <= now < limits[1]


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_follow_a_chain_of_deltas(store: Store, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    manifest, catalogue = base(store, kind)
    names = [*catalogue.ids, *(f"new-{number}-{row}" for number in range(5) for row in range(60))]
    says = described(rng, names)
    log = BundleLog(store)
    loaded = load_bundle(log, "v0")
    tagged = TaggedRows.of(says.catalogue(), loaded.rows, loaded.key_secret)
    assert_right(tagged, says, catalogue.ids)
    for number in range(1, 5):
        change = drawn(catalogue, rng, number)
        catalogue = changed(catalogue, change)
        manifest = write_delta(store, f"v{number}", manifest, catalogue, change)
        later = load_bundle(log, f"v{number}", served=loaded)
        moved = moved_rows(loaded.rows, later.rows)
        assert set(moved.tolist()) == {*change.new, *change.removed}
        tagged, loaded = tagged.moved(loaded.rows, later.rows), later
        assert_right(tagged, says, catalogue.ids)
        assert_right(TaggedRows.of(says.catalogue(), later.rows, ""), says, catalogue.ids)


def test_nothing_is_looked_up_again_where_no_item_moves(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    base(store)
    loaded = load_bundle(BundleLog(store), "v0")
    tagged = TaggedRows.of(Described({"item-1": ["jazz"]}).catalogue(), loaded.rows, "")
    assert tagged.moved(loaded.rows, loaded.rows) is tagged


@settings(max_examples=30)
@given(st.lists(st.integers(0, 70_000)), st.integers(70_001, 70_020))
def test_sets_of_rows_take_other_shapes(rows: list[int], size: int) -> None:
    found = rowset(np.array(rows, np.int64))
    assert rows_in(found).tolist() == sorted(set(rows))
    bits = np.unpackbits(bits_of(rows_in(found), size), bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted(set(rows))
