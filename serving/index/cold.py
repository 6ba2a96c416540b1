"""Cold items: items of the catalogue that a bundle lacks, answered from their features.

Cold items get rows behind the bundle's rows, with vectors that the model makes of features alone
(`weir.contracts.interactions.features`), so that filters and histories treat them like other items. A search compares
all cold items exactly, in addition to the search in the bundle's index.
"""

from dataclasses import dataclass
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows, ItemKeys
from weir.contracts.bundles.rows import FIRST_ITEM_ROW, BundleRows
from weir.contracts.interactions.catalogue import Catalogue
from weir.contracts.interactions.features import FeatureWeights
from weir.serving.index.index import Exact, ExactIndex, Found, Index, best, exact_index
from weir.serving.index.popular import Popular

__all__ = ["ColdItems", "Model", "WithCold", "absent_entries", "still_absent"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_NONE: Final = np.empty(0, np.int64)


class Model(Protocol):
    """The parts of a loaded bundle that cold items need: its rows, and vectors that its model makes of features."""

    @property
    def rows(self) -> BundleRows:
        """Keys, ids and vectors by row."""

    @property
    def popular(self) -> Popular:
        """The rows by popularity."""

    @property
    def features(self) -> FeatureWeights | None:
        """The weights of item features; None: the model has none."""

    @property
    def key_secret(self) -> str:
        """The secret that item keys are made with."""

    def normalised(self, vectors: Floats) -> Floats:
        """Return vectors (n, dimension) ready for search."""


@dataclass(frozen=True)
class WithCold:
    """Searches an index and all cold items, whose rows begin at `first`."""

    inner: Index
    cold: ExactIndex
    first: int

    @property
    def lists(self) -> int:
        """Number of inverted lists of the index."""
        return self.inner.lists

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` rows for each of `queries` (n, dimension), cold items included."""
        late = self.cold.search(queries, k)
        return best([self.inner.search(queries, k, nprobe), Found(late.scores, IndexRows(late.rows + self.first))], k)

    def reaches(self, k: int, nprobe: int = 0) -> bool:
        """Return whether the index's limits allow a search for `k` rows in `nprobe` lists."""
        return self.inner.reaches(k, nprobe)

    def cost(self, nprobe: int = 0) -> float:
        """Estimate a query's search in microseconds of one core."""
        return self.inner.cost(nprobe) + self.cold.cost()


@dataclass(frozen=True, eq=False)
class ColdItems:
    """The cold items of one bundle version, and the rows, exact search and popularity extended by them.

    `rows` holds the bundle's rows, followed by the rows of cold items from `first` on; `vectors` are the cold items'
    alone. `absent` are the catalogue entries of all items that the bundle lacks, ascending. `left_out` counts absent
    items with known features that are not cold items because of the limit.
    """

    rows: BundleRows
    first: int
    vectors: ExactIndex
    exact: Exact
    popular: Popular
    absent: Int64
    left_out: int

    @classmethod
    def of(cls, bundle: Model, catalogue: Catalogue, absent: Int64, limit: int) -> Self:
        """Make cold items of the last `limit` of the `absent` catalogue entries whose features the model knows."""
        weights, rows, first = bundle.features, bundle.rows, len(bundle.rows)
        if weights is None:
            raise ValueError("the bundle does not know what features say")
        embeddings = weights.embeddings(catalogue.features.take(absent))
        # A zero vector means that the model knows no feature of the item: it cannot be ranked.
        rankable = np.flatnonzero(np.any(embeddings != 0, axis=1))
        chosen = rankable[max(0, len(rankable) - limit) :]
        entries, embeddings = absent[chosen], np.ascontiguousarray(embeddings[chosen])
        vectors, places = bundle.normalised(embeddings), first + np.arange(len(chosen))
        keys = catalogue.keys(bundle.key_secret)[entries]
        extended = BundleRows(
            ids=rows.ids.replaced(places, np.array(catalogue.ids.take(entries).to_pylist(), object), _NONE),
            keys=rows.keys.replaced(places, keys, _NONE),
            popularity=rows.popularity.replaced(places, np.zeros(len(places)), _NONE),
            vectors=rows.vectors.replaced(places, vectors, _NONE),
            embeddings=rows.embeddings.replaced(places + FIRST_ITEM_ROW, embeddings, _NONE),
            item_rows=rows.item_rows.including(ItemKeys(keys), IndexRows(places)),
        )
        popular = Popular.of(extended.popularity, bundle.popular)
        exact = exact_index(extended.vectors)
        return cls(extended, first, ExactIndex(vectors), exact, popular, absent, len(rankable) - len(chosen))

    def __len__(self) -> int:
        return len(self.vectors.vectors)


def absent_entries(catalogue: Catalogue, bundle: Model) -> Int64:
    """Return the catalogue entries of the items that a bundle lacks, ascending."""
    keys = ItemKeys(catalogue.keys(bundle.key_secret))
    return np.flatnonzero(bundle.rows.item_rows.look_up(keys) < 0)


def still_absent(catalogue: Catalogue, bundle: Model, before: Int64, gone: ItemKeys) -> Int64:
    """Return the same as `absent_entries` for a later version, without looking up every entry.

    `before` are the absent entries of an earlier version, `gone` the keys of the items removed from the bundle since.
    """
    left = catalogue.entries(bundle.key_secret).look_up(gone)
    entries = np.union1d(before, left[left >= 0])
    keys = ItemKeys(catalogue.keys(bundle.key_secret)[entries])
    absent: Int64 = entries[bundle.rows.item_rows.look_up(keys) < 0]
    return absent
