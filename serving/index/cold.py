"""Cold items: items of the catalogue that a bundle lacks, answered from their features.

They get rows after those of the bundle, with the vector that the model makes of features alone
(`weir.contracts.interactions.features`), so that filters and histories treat them like other items. A search compares
all of them exactly, in addition to the search in the bundle's index.
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
    """What cold items need of a bundle in memory: its rows, and the vectors that its model makes of features."""

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
        """Return the best `k` rows found for each query."""
        late = self.cold.search(queries, k)
        return best([self.inner.search(queries, k, nprobe), Found(late.scores, IndexRows(late.rows + self.first))], k)

    def reaches(self, k: int, nprobe: int = 0) -> bool:
        """Return whether the index's limits allow such a search."""
        return self.inner.reaches(k, nprobe)

    def cost(self, nprobe: int = 0) -> float:
        """Estimate a query's search in microseconds of one core."""
        return self.inner.cost(nprobe) + self.cold.cost()


@dataclass(frozen=True, eq=False)
class ColdItems:
    """The cold items of one version: `rows` holds the bundle's rows, followed by the cold ones from `first` on.

    `absent` are the catalogue entries of all items that the bundle lacks, ascending; `left_out` counts those with known
    features that exceeded the limit.
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
        """Build rows for at most `limit` of the `absent` entries, the last ones of the catalogue."""
        weights, rows, first = bundle.features, bundle.rows, len(bundle.rows)
        if weights is None:
            raise ValueError("the bundle does not know what features say")
        embeddings = weights.embeddings(catalogue.features.take(absent))
        # A zero vector means that no feature of the item is known to the model: it cannot be ranked.
        told = np.flatnonzero(np.any(embeddings != 0, axis=1))
        chosen = told[max(0, len(told) - limit) :]
        entries, embeddings = absent[chosen], np.ascontiguousarray(embeddings[chosen])
        vectors, places = bundle.normalised(embeddings), first + np.arange(len(chosen))
        keys = catalogue.keys(bundle.key_secret)[entries]
        found = BundleRows(
            ids=rows.ids.replaced(places, np.array(catalogue.ids.take(entries).to_pylist(), object), _NONE),
            keys=rows.keys.replaced(places, keys, _NONE),
            popularity=rows.popularity.replaced(places, np.zeros(len(places)), _NONE),
            vectors=rows.vectors.replaced(places, vectors, _NONE),
            embeddings=rows.embeddings.replaced(places + FIRST_ITEM_ROW, embeddings, _NONE),
            item_rows=rows.item_rows.including(ItemKeys(keys), IndexRows(places)),
        )
        popular = Popular.of(found.popularity, bundle.popular)
        exact = exact_index(found.vectors)
        return cls(found, first, ExactIndex(vectors), exact, popular, absent, len(told) - len(chosen))

    def __len__(self) -> int:
        return len(self.vectors.vectors)


def absent_entries(catalogue: Catalogue, bundle: Model) -> Int64:
    """Return the catalogue entries of the items that a bundle lacks, ascending."""
    keys = ItemKeys(catalogue.keys(bundle.key_secret))
    return np.flatnonzero(bundle.rows.item_rows.look_up(keys) < 0)


def still_absent(catalogue: Catalogue, bundle: Model, before: Int64, gone: ItemKeys) -> Int64:
    """Update `absent_entries` from those absent `before` and the keys of items `gone` from the bundle since."""
    left = catalogue.entries(bundle.key_secret).look_up(gone)
    entries = np.union1d(before, left[left >= 0])
    keys = ItemKeys(catalogue.keys(bundle.key_secret)[entries])
    found: Int64 = entries[bundle.rows.item_rows.look_up(keys) < 0]
    return found
