"""Cold items for the tests: each number of an embedding is a feature of its own, so that any item can be told."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from tests.serving.support import Catalogue, write_bundle
from weir.contracts import BundleLog, FeatureNames, Store
from weir.contracts.interactions.catalogue import CATALOGUE_SCHEMA
from weir.contracts.interactions.catalogue import Catalogue as Described
from weir.contracts.interactions.features import MAX_DENSE, FeatureWeights, Moments
from weir.serving.bundles.bundle import BundleState, LoadedBundle
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.cold import ColdItems, absent_entries
from weir.serving.index.eligibility import CatalogueView

COLD = 40
"""How many of the items of a catalogue no bundle has: the last ones."""


def names(dimension: int = 8) -> FeatureNames:
    return FeatureNames(dense=tuple(f"x{number}" for number in range(dimension)))


def identity(dimension: int = 8) -> FeatureWeights:
    """Return weights by which features are an embedding, as long as none is above 5."""
    dense = np.eye(dimension, MAX_DENSE, dtype=np.float32)
    values = np.zeros((16, dimension), np.float32)
    return FeatureWeights(names(dimension), values, dense, (Moments(1.0, 0.0, 1.0),) * dimension)


def with_cold(catalogue: Catalogue) -> Catalogue:
    """Return the items of which the last are cold: their vectors are their embeddings, and nobody has clicked them."""
    vectors, popularity = catalogue.vectors.copy(), catalogue.popularity.copy()
    cold = catalogue.embeddings[2:][-COLD:]
    vectors[-COLD:] = cold / np.linalg.norm(cold, axis=1, keepdims=True)
    popularity[-COLD:] = 0
    return Catalogue(catalogue.ids, vectors, catalogue.embeddings, popularity)


def warm(catalogue: Catalogue) -> Catalogue:
    """Return the items that a bundle has."""
    ids, vectors, embeddings, popularity = (
        part[:-COLD] for part in (catalogue.ids, catalogue.vectors, catalogue.embeddings, catalogue.popularity)
    )
    return Catalogue(ids, vectors, embeddings, popularity)


def rows_of(catalogue: Catalogue, **more: list[object]) -> pa.Table:
    """Return the rows of a described catalogue that names all items, with their features."""
    numbers = catalogue.embeddings[2:].astype(np.float64)
    features = {name: numbers[:, place] for place, name in enumerate(names(numbers.shape[1]).dense)}
    missing = {name: more.get(name, [None] * len(numbers)) for name in CATALOGUE_SCHEMA.names[1:]}
    table = pa.table({"item_id": catalogue.ids, **missing}, schema=CATALOGUE_SCHEMA)
    for name, values in features.items():
        table = table.append_column(name, pa.array(values))
    return table


def described(catalogue: Catalogue) -> Described:
    """Return a catalogue with all items and their features."""
    return Described.of(rows_of(catalogue))


def write_warm(store: Store, version: str, catalogue: Catalogue, index: str, **parameters: float) -> None:
    """Write the bundle that has the warm items."""
    write_bundle(
        store,
        version,
        warm(catalogue),
        index=index,
        parameters=parameters,
        features=identity(catalogue.vectors.shape[1]),
    )


def loaded(store: Store, catalogue: Catalogue, index: str, *, cold: bool, **parameters: float) -> LoadedBundle:
    """Return a bundle of all items, or of the warm ones with the cold ones beside."""
    if not cold:
        write_bundle(store, "v1", catalogue, index=index, parameters=parameters)
        return load_bundle(BundleLog(store), "v1")
    write_warm(store, "v1", catalogue, index, **parameters)
    bundle, about = load_bundle(BundleLog(store), "v1"), described(catalogue)
    there = cold_of(bundle, about)
    return replace(bundle, state=BundleState(replace(CatalogueView.of(about, there.rows, ""), cold=there)))


def cold_of(bundle: LoadedBundle, about: Described, limit: int = 1000) -> ColdItems:
    return ColdItems.of(bundle, about, absent_entries(about, bundle), limit)
