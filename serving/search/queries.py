"""Queries, tasks and answers, independent of the transport."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import ItemKeys, Key
from weir.contracts.base import columns
from weir.contracts.interactions.features import CATEGORICAL_TYPE, DENSE_TYPE, FeatureWeights
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.errors import BundleVersionNotLoadedError
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import NO_TAGS, TagFilter
from weir.serving.metrics import CallTrace

__all__ = [
    "NO_FEATURES",
    "Answer",
    "ByEmbedding",
    "ByHistory",
    "ByItem",
    "ByUser",
    "Features",
    "Hits",
    "Query",
    "QueryFeatures",
    "Source",
    "Task",
    "joined",
    "said_in",
    "values_in",
]


Floats = npt.NDArray[np.float32]

Features = Mapping[str, tuple[str, ...] | float]
"""User features of a query, by name: the values of a categorical feature, or a number."""

NO_FEATURES: Features = {}


class QueryFeatures(NamedTuple):
    """The feature vectors of n queries, (n, dimension), None without features; `missing` are names the bundle lacks."""

    vectors: Floats | None
    missing: list[list[str]]

    @classmethod
    def of(cls, weights: FeatureWeights | None, queries: Sequence[Features]) -> Self:
        """Embed the features of queries by a bundle's weights; a feature of the wrong kind counts as missing."""
        kinds: dict[str, type] = {}
        if weights is not None:
            kinds = dict.fromkeys(weights.names.categorical, tuple) | dict.fromkeys(weights.names.dense, float)
        missing = [[name for name, said in one.items() if not isinstance(said, kinds.get(name, ()))] for one in queries]
        names = {name for one, lacking in zip(queries, missing, strict=True) for name in one.keys() - set(lacking)}
        if weights is None or not names:
            return cls(None, missing)
        table = pa.table({name: _column(name, kinds[name], queries) for name in sorted(names)})
        return cls(weights.embeddings(table), missing)

    def of_query(self, number: int) -> Floats | None:
        """Return the feature vector (dimension,) of the query with this number; None if the vector is zero."""
        if self.vectors is None or not self.vectors[number].any():
            return None
        vector: Floats = self.vectors[number]
        return vector


def values_in(features: Features) -> int:
    """Return the number of values in features; a number counts as one."""
    return sum(1 if isinstance(said, float) else len(said) for said in features.values())


def said_in(examples: pa.Table) -> list[Features]:
    """Return the user features in each row of a table of examples, without missing values."""
    if columns.USER_FEATURES not in examples.column_names:
        return [NO_FEATURES] * len(examples)
    return [
        {name: tuple(said) if isinstance(said, list) else said for name, said in row.items() if said not in (None, [])}
        for row in examples[columns.USER_FEATURES].to_pylist()
    ]


def _column(name: str, kind: type, queries: Sequence[Features]) -> pa.Array:
    values = [said if isinstance(said := one.get(name), kind) else None for one in queries]
    return pa.array(values, DENSE_TYPE if kind is float else CATEGORICAL_TYPE)


@dataclass(frozen=True)
class ByUser:
    """Source of a query by user: the key of the user, whose stored history is looked up."""

    key: Key


@dataclass(frozen=True, eq=False)
class ByHistory:
    """Source of a query by a given history: the n item ids and their keys (n,), oldest first."""

    ids: tuple[str, ...]
    keys: ItemKeys


@dataclass(frozen=True, eq=False)
class ByEmbedding:
    """Source of a query by a given vector, (dimension,)."""

    values: Floats


@dataclass(frozen=True)
class ByItem:
    """Source of a query for items similar to this one: its id and key."""

    id: str
    key: Key


Source = ByUser | ByHistory | ByEmbedding | ByItem


@dataclass(frozen=True, eq=False)
class Query:
    """One query for `k` items; queries by user or history may have `features`."""

    source: Source
    k: int
    features: Features = field(default_factory=dict)


def _no_keys() -> ItemKeys:
    return ItemKeys(np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Task:
    """One request, and the bundle against which it was checked.

    `exact` asks for exact search, `nprobe` for this many lists (0: the default), `threshold` for items with at least
    this score. `allowed` (None: every item) and `excluded` are item keys, `tags` filters items by tag, and `cap` limits
    the items per tag. With `find` False only vectors are computed. A `pinned` task is answered by this bundle or not at
    all. `trace` records the batches of the task. `costs` are the estimated costs of its queries
    (`weir.serving.search.cost`), None until computed.
    """

    bundle: LoadedBundle
    queries: tuple[Query, ...]
    exact: bool = False
    nprobe: int = 0
    threshold: float | None = None
    exclude_seen: bool = False
    excluded: ItemKeys = field(default_factory=_no_keys)
    allowed: ItemKeys | None = None
    tags: TagFilter = NO_TAGS
    cap: TagCap | None = None
    find: bool = True
    pinned: bool = False
    trace: CallTrace | None = None
    costs: Sequence[float] | None = None

    def answering(self) -> LoadedBundle:
        """Return the bundle that answers; a later bundle if a delta was applied in place while the request waited.

        Raises `BundleVersionNotLoadedError` or `NoBundleError`.
        """
        bundle = self.bundle.answering()
        if self.pinned and bundle is not self.bundle:
            raise BundleVersionNotLoadedError(self.bundle.version, bundle.version)
        return bundle


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to one query: item ids and their scores, best first.

    `missing` are item ids of the query that the bundle lacks. `vector` is the query's vector; None if the bundle has no
    data for the query, and the items are popular ones. `seen_bounded`: the stored history is incomplete, so seen items
    may be returned. `complete`: at least k items are eligible for the request. `cold` marks cold items; empty if no
    item is cold. `missing_features` are feature names that the bundle does not know.
    """

    ids: list[str]
    scores: list[float]
    missing: list[str]
    vector: Floats | None
    seen_bounded: bool = False
    complete: bool = True
    cold: list[bool] = field(default_factory=list)
    missing_features: list[str] = field(default_factory=list)

    @property
    def fallback(self) -> bool:
        """Whether the items are the most popular ones, because the query has no vector."""
        return self.vector is None


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a task: the hits of each query, the bundle version that answered, and the batch's seconds."""

    version: str
    hits: list[Hits]
    tower_seconds: float
    search_seconds: float


def joined(answers: Sequence[Answer]) -> Answer:
    """Join the answers to the parts of a task into one; all are from the same version."""
    return Answer(
        answers[0].version,
        [hits for answer in answers for hits in answer.hits],
        sum(answer.tower_seconds for answer in answers),
        sum(answer.search_seconds for answer in answers),
    )
