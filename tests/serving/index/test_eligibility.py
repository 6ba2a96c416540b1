""""""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.deltas import base, changed, drawn, write_delta
from tests.serving.support import Catalogue, write_bundle
from tests.serving.tagging import Described
from weir.contracts import BundleLog, IndexRows, ItemKeys, Store, hash_id
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.eligibility import NO_TAGS, CatalogueView, Eligibility, RowMask, TagFilter, moved_rows
from weir.serving.index.popular import bits_of, rows_in, rowset

NAMES = ["jazz", "blues", "new", "unheard-of"]
tags = st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> LoadedBundle:
    store = Store(str(tmp_path_factory.mktemp("store")))
    write_bundle(store, "v1", Catalogue.random(items=40))
    return load_bundle(BundleLog(store), "v1")


def keys(items: list[str]) -> ItemKeys:
    return ItemKeys(np.array([hash_id(item) for item in items], np.int64))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    says=st.builds(
        Described,
        st.dictionaries(st.integers(0, 45).map("item-{}".format), st.sets(st.sampled_from(NAMES[:3]))),
        st.dictionaries(
            st.integers(0, 45).map("item-{}".format),
            st.tuples(st.none() | st.integers(0, 9000), st.none() | st.integers(0, 9000)),
        ),
    ),
    wanted=st.builds(TagFilter, tags, tags, tags),
    down=st.lists(st.integers(0, 45).map("item-{}".format)),
    allowed=st.none() | st.lists(st.integers(0, 45).map("item-{}".format)),
    now=st.integers(0, 10),
)
def test_what_passes_is_what_passes_one_by_one(
    *, bundle: LoadedBundle, says: Described, wanted: TagFilter, down: list[str], allowed: list[str] | None, now: int
) -> None:
    tagged = CatalogueView.of(says.catalogue(), bundle.rows, "")
    eligibility = Eligibility.of(bundle.rows, tagged, keys(down), now)
    passing = eligibility.passing(wanted, None if allowed is None else keys(allowed))
    expected = [
        item
        for item in says.passing(bundle.ids.base.tolist(), wanted, now * 1000)
        if item not in down and (allowed is None or item in allowed)
    ]
    assert bundle.ids[passing.array].tolist() == expected
    assert len(passing) == len(expected)
    popular = passing.most_popular(bundle.popularity.__getitem__, 7)
    ranked = sorted(expected, key=lambda item: -bundle.popularity.base[bundle.ids.base.tolist().index(item)])
    assert bundle.ids[popular].tolist() == ranked[:7]
    assert bundle.ids[passing.most_popular(bundle.popularity.__getitem__, 3)].tolist() == ranked[:3]


def test_it_holds_until_the_next_item_comes_or_goes_but_a_second_at_least(bundle: LoadedBundle) -> None:
    says = Described({}, {"item-1": (10_000, 20_000), "item-2": (None, 10_300)})
    tagged, down = CatalogueView.of(says.catalogue(), bundle.rows, ""), keys(["item-3"])
    eligibility = Eligibility.of(bundle.rows, tagged, down, 5.0)
    assert eligibility.holds(tagged, down, 9.9)
    assert not eligibility.holds(tagged, down, 10.0)
    assert not eligibility.holds(tagged, down, 4.0), "the clock was set back"
    assert not eligibility.holds(tagged, keys(["item-3"]), 9.9)
    assert not eligibility.holds(None, down, 9.9)
    busy = Eligibility.of(bundle.rows, tagged, down, 10.1)
    assert busy.holds(tagged, down, 11.0)
    assert not busy.holds(tagged, down, 11.1)
    assert Eligibility.of(bundle.rows, None, down, 5.0).holds(None, down, 1e12)


def test_the_rows_of_a_filter_are_kept_but_not_of_every_one(bundle: LoadedBundle) -> None:
    tagged = CatalogueView.of(Described({"item-1": ["jazz"]}).catalogue(), bundle.rows, "")
    eligibility = Eligibility.of(bundle.rows, tagged, keys([]), 0.0)
    jazz = eligibility.passing(TagFilter(any=("jazz",)), None)
    assert eligibility.passing(TagFilter(any=("jazz",)), None) is jazz
    assert eligibility.passing(TagFilter(any=("jazz",)), keys(["item-1"])) is not jazz
    for number in range(100):
        eligibility.passing(TagFilter(none=(str(number),)), None)
    assert eligibility.passing(TagFilter(any=("jazz",)), None) is not jazz
    assert len(eligibility.passing(NO_TAGS, None)) == 40


@given(
    rows=st.sets(st.integers(0, 99)),
    hidden=st.lists(st.integers(0, 99)),
)
def test_rows_are_hidden_for_a_while(rows: set[int], hidden: list[int]) -> None:
    passing, everything = RowMask(rowset(np.array(sorted(rows), np.int64)), 100), IndexRows(np.arange(100))
    with passing.without(IndexRows(np.array(hidden, np.int64))):
        assert set(passing.shown(everything).tolist()) == rows - set(hidden)
        assert len(passing) == len(rows)
    assert set(passing.shown(everything).tolist()) == rows


TAGS = ["jazz", "blues", "new"]


def described(rng: np.random.Generator, items: list[str]) -> Described:
    """Give items random tags, and some of them limits."""
    tags = {item: rng.choice(TAGS, rng.integers(0, 4), replace=False).tolist() for item in items if rng.random() < 0.9}
    limits = {item: (int(rng.integers(0, 50)), int(rng.integers(50, 100))) for item in items if rng.random() < 0.2}
    return Described(tags, limits)


def assert_right(tagged: CatalogueView, says: Described, ids: list[str]) -> None:
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
    tagged = CatalogueView.of(says.catalogue(), loaded.rows, loaded.key_secret)
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
        assert_right(CatalogueView.of(says.catalogue(), later.rows, ""), says, catalogue.ids)


def test_nothing_is_looked_up_again_where_no_item_moves(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    base(store)
    loaded = load_bundle(BundleLog(store), "v0")
    tagged = CatalogueView.of(Described({"item-1": ["jazz"]}).catalogue(), loaded.rows, "")
    assert tagged.moved(loaded.rows, loaded.rows) is tagged


@settings(max_examples=30)
@given(st.lists(st.integers(0, 70_000)), st.integers(70_001, 70_020))
def test_sets_of_rows_take_other_shapes(rows: list[int], size: int) -> None:
    found = rowset(np.array(rows, np.int64))
    assert rows_in(found).tolist() == sorted(set(rows))
    bits = np.unpackbits(bits_of(rows_in(found), size), bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted(set(rows))
