"""A cap on tags by itself, against a walk over all rows; `test_retriever_filters.py` has it within a request."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.serving.tagging import Described
from weir.contracts import IndexRows, ItemKeys, hash_ids
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.rows import BundleRows, ItemRows
from weir.serving.index.diversity import CappedSelection, Ranked, TagCap
from weir.serving.index.eligibility import CatalogueView

ITEMS = [f"item-{number}" for number in range(40)]
TAGS = ["a", "ab", "b", "ba", "é", "z"]


@dataclass
class Search:
    """Ranks rows by scores, (rows,)."""

    scores: np.ndarray

    def __call__(self, left: BitMap, count: int) -> Ranked:
        rows = np.array(sorted(left, key=lambda row: -self.scores[row])[:count], np.int64)
        return self.scores[rows].astype(np.float32), IndexRows(rows)


def rows_of(items: list[str]) -> BundleRows:
    """Return rows of which only the keys are needed."""
    keys = ItemKeys(hash_ids(items, ""))
    none = np.zeros((len(items), 1))
    return BundleRows(
        Layers.of(np.array(items, object)),
        Layers.of(keys),
        Layers.of(none[:, 0]),
        Layers.of(none.astype(np.float32)),
        Layers.of(none.astype(np.float32)),
        ItemRows.of(keys),
    )


ROWS = rows_of(ITEMS)


@given(
    tags=st.lists(st.sets(st.sampled_from(TAGS), max_size=3), min_size=len(ITEMS), max_size=len(ITEMS)),
    order=st.permutations(range(len(ITEMS))),
    first=st.integers(0, len(ITEMS)),
    cap=st.builds(TagCap, st.integers(1, 4), st.sampled_from(["", "a", "b", "é", "zz"])),
    wanted=st.integers(1, 50),
)
def test_the_best_that_the_cap_allows_are_taken_whatever_was_found_first(
    tags: list[set[str]], order: list[int], first: int, cap: TagCap, wanted: int
) -> None:
    says = Described(dict(zip(ITEMS, tags, strict=True)))
    spread = CappedSelection(CatalogueView.of(says.catalogue(), ROWS, ""), ROWS, cap, wanted)
    search = Search(-np.argsort(order).astype(np.float64))
    scores, rows = search(BitMap(range(len(ITEMS))), first)
    spread.take(scores, rows)
    spread.go_on(BitMap(range(len(ITEMS))) - BitMap(rows.tolist()), search)
    expected = says.spread([ITEMS[row] for row in order], cap, wanted)
    assert [ITEMS[row] for row in spread.taken[1]] == expected
    assert spread.done == (len(expected) == wanted)


def test_what_is_found_late_still_comes_in_its_place() -> None:
    says = Described({item: ["a"] for item in ITEMS[:20]})
    spread = CappedSelection(CatalogueView.of(says.catalogue(), ROWS, ""), ROWS, TagCap(1), 3)
    spread.take(np.array([0.5, 0.4], np.float32), IndexRows(np.array([3, 4])))
    spread.go_on(
        BitMap(range(len(ITEMS))), lambda *_: (np.array([0.9, 0.3], np.float32), IndexRows(np.array([30, 31])))
    )
    assert spread.taken[1].tolist() == [30, 3, 31]
    np.testing.assert_allclose(spread.taken[0], [0.9, 0.5, 0.3], rtol=1e-6)
