"""A bundle in memory: user tower, index, ids and vectors as one object.

A `LoadedBundle` is all of one version: swapping is one assignment, and the old version's memory is freed when the last
request that started with it is answered. Nothing of it changes, except that a delta which is taken in place makes its
index that of the next version (`weir.serving.in_place`), and that what the catalogue says of its rows is replaced
(`Shelf`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import BundleManifest, IndexRows, ItemKeys
from weir.contracts.bundle_rows import BundleRows
from weir.contracts.feature_weights import FeatureWeights
from weir.contracts.index_delta import keeps_places
from weir.contracts.item_rows import ItemRows, tower_rows
from weir.contracts.layers import Layers
from weir.serving.errors import NoBundleError
from weir.serving.index import AnnIndex, Exact, Index
from weir.serving.popular import Popular
from weir.serving.scorer import Scorer
from weir.serving.sieve import Sieve
from weir.serving.tagged import TaggedRows
from weir.serving.tower import Tower

__all__ = ["Handover", "LoadedBundle", "Shelf"]

_TINY: Final = np.finfo(np.float64).tiny

Floats = npt.NDArray[np.float32]


@dataclass
class Handover:
    """What has become of a bundle's index: it is that of the version `to`, or `damaged`, or neither.

    Written and read by the thread that searches.
    """

    to: "LoadedBundle | None" = None
    damaged: bool = False


@dataclass
class Shelf:
    """What belongs to a version and changes without it: the catalogue's view of its rows, None without a catalogue.

    `tagged` is replaced by the threads that follow bundles and catalogue, `sieve` belongs to the one that searches.
    """

    tagged: TaggedRows | None = None
    sieve: Sieve | None = None


@dataclass(frozen=True, eq=False)
class LoadedBundle:
    """One version, ready to answer; `items` counts the items that it can return.

    `popular` ranks its rows by popularity. `key_secret` is the store's (`weir.contracts.keys`).
    `size` estimates its memory in bytes. `features` says what item features add to an item, if the model knows any, and
    `user_features` what those of users add to what the tower makes of a history; `scorer` scores the best items of the
    index again, if it has a second phase. Its last `cold` rows are items that it does not have (`weir.serving.cold`).
    """

    manifest: BundleManifest
    tower: Tower
    index: Index
    exact: Exact
    rows: BundleRows
    popular: Popular
    key_secret: str = ""
    size: int = 0
    features: FeatureWeights | None = None
    user_features: FeatureWeights | None = None
    scorer: Scorer | None = None
    cold: int = 0
    servable_at: float = field(default_factory=time.time)
    handover: Handover = field(default_factory=Handover)
    shelf: Shelf = field(default_factory=Shelf)

    @property
    def version(self) -> str:
        """The name of the bundle."""
        return self.manifest.version

    @property
    def items(self) -> int:
        """How many items can be returned."""
        return self.manifest.items + self.cold

    @property
    def rescored(self) -> int:
        """How many of the best items of the index are scored again; 0: answers are those of the index."""
        return 0 if self.scorer is None else self.manifest.rescored or 0

    @property
    def ids(self) -> Layers[np.object_]:
        """The ids of items by row, strings."""
        return self.rows.ids

    @property
    def embeddings(self) -> Layers[np.float32]:
        """What the tower reads of items, (2 + rows, dimension)."""
        return self.rows.embeddings

    @property
    def item_rows(self) -> ItemRows:
        """The rows of keys."""
        return self.rows.item_rows

    @property
    def popularity(self) -> Layers[np.float64]:
        """Decayed counts by row; minus infinity where a row holds no item."""
        return self.rows.popularity

    @property
    def has_catalogue(self) -> bool:
        """Whether it is known which tags its items have."""
        return self.shelf.tagged is not None

    @property
    def changeable(self) -> AnnIndex | None:
        """Its index, if that can be changed in place."""
        index = self.index
        return index if isinstance(index, AnnIndex) and index.keep is None and keeps_places(index.index) else None

    def answering(self) -> "LoadedBundle":
        """Return the version that its index belongs to now, itself or a later one.

        Raises `NoBundleError` where a change in place has failed: there is nothing to search then.
        """
        bundle = self
        while bundle.handover.to is not None:
            bundle = bundle.handover.to
        if bundle.handover.damaged:
            raise NoBundleError
        return bundle

    def rows_of(self, keys: ItemKeys) -> IndexRows:
        """Return the index row of each key, in the shape of `keys`; -1 for padding and for unknown items."""
        return self.item_rows.look_up(keys)

    def users(self, histories: ItemKeys) -> Floats:
        """Return the tower's vectors (n, dimension) of histories (n, any length), left-padded, oldest first.

        The newest known items that the model was trained to read count.
        """
        rows, mask = self.item_rows.tower_inputs(histories, self.manifest.newest, self.manifest.history_length)
        return self.normalised(self.tower(self.embeddings[rows], mask))

    def users_at(self, histories: Sequence[IndexRows], said: Floats | None = None) -> Floats:
        """Return what `users` does, of histories given by the rows of their known items, not longer than it reads.

        With it comes what features of the users have `said`, (n, dimension).
        """
        rows, mask = tower_rows(histories, self.manifest.history_length)
        users = self.tower(self.embeddings[rows], mask)
        return self.normalised(users if said is None else users + said)

    def normalised(self, vectors: Floats) -> Floats:
        """Return vectors (n, dimension) as they are searched with: of length 1 where the metric is cosine."""
        if self.manifest.metric != "cosine":
            return vectors
        # In 32 bits the square of a length overflows from 1.8e19 on.
        wide = vectors.astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        wide /= np.maximum(lengths, _TINY, out=lengths)[:, None]
        return wide.astype(np.float32)
