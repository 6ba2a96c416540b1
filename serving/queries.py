"""Queries, tasks and answers of the serving core, independent of the transport."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weir.contracts import ItemKeys, Key
from weir.serving.bundle import LoadedBundle
from weir.serving.errors import BundleVersionNotLoadedError
from weir.serving.said import Features
from weir.serving.sieve import NO_TAGS, TagFilter
from weir.serving.spans import CallTrace
from weir.serving.spread import TagCap

__all__ = ["Answer", "ByEmbedding", "ByHistory", "ByItem", "ByUser", "Hits", "Query", "Source", "Task", "joined"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ByUser:
    """A user, whose stored history is looked up."""

    key: Key


@dataclass(frozen=True, eq=False)
class ByHistory:
    """A history given in the request: ids and their keys, (n,), oldest first."""

    ids: tuple[str, ...]
    keys: ItemKeys


@dataclass(frozen=True, eq=False)
class ByEmbedding:
    """A vector, (dimension,)."""

    values: Floats


@dataclass(frozen=True)
class ByItem:
    """An item, for a query for similar items."""

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
    """One request, tied to the bundle it was checked against.

    `allowed` (None: every item) and `excluded` are item keys, `tags` filters items by tag, and `cap` limits the items
    per tag. With `find` False only vectors are computed. A `pinned` task is answered by this bundle or not at all.
    `trace` records its batches.
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

    def answering(self) -> LoadedBundle:
        """Return the bundle that answers: a later one if a delta was applied in place while the request waited.

        Raises `BundleVersionNotLoadedError` or `NoBundleError`.
        """
        bundle = self.bundle.answering()
        if self.pinned and bundle is not self.bundle:
            raise BundleVersionNotLoadedError(self.bundle.version, bundle.version)
        return bundle


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to one query; `vector` is None if the bundle has no data for it, and the items are popular ones.

    `seen_bounded`: the stored history is incomplete, so seen items may be returned. `complete`: k items are eligible
    for the request. `cold` marks cold items; empty if there is none. `missing_features` are feature names that the
    bundle does not know.
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
        """Whether the items are popular ones, not found by a vector."""
        return self.vector is None


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a task from one bundle `version`, and the seconds that its batch took."""

    version: str
    hits: list[Hits]
    tower_seconds: float
    search_seconds: float


def joined(answers: Sequence[Answer]) -> Answer:
    """Join the answers to the parts of a task, all from one version."""
    return Answer(
        answers[0].version,
        [hits for answer in answers for hits in answer.hits],
        sum(answer.tower_seconds for answer in answers),
        sum(answer.search_seconds for answer in answers),
    )
