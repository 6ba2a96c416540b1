"""What the core is asked and what it answers, without transport."""

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
    """A user, by the stored history."""

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
    """An item whose neighbours are wanted."""

    id: str
    key: Key


Source = ByUser | ByHistory | ByEmbedding | ByItem


@dataclass(frozen=True, eq=False)
class Query:
    """One query; `k` items are wanted. Users may have `features`."""

    source: Source
    k: int
    features: Features = field(default_factory=dict)


def _no_keys() -> ItemKeys:
    return ItemKeys(np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class Task:
    """One request, tied to the bundle it was checked against.

    `allowed` (None: every item) and `excluded` are item keys, `tags` says which tags an item must have, and `cap` how
    many items of a tag an answer may have; without `find` only vectors are made. Where it is `pinned`, no other bundle
    answers. A `trace` notes its batches.
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
        """Return the bundle that answers: a later one where a delta was taken in place while the request waited.

        Raises `BundleVersionNotLoadedError` or `NoBundleError`.
        """
        bundle = self.bundle.answering()
        if self.pinned and bundle is not self.bundle:
            raise BundleVersionNotLoadedError(self.bundle.version, bundle.version)
        return bundle


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to one query; `vector` is None where the bundle knows nothing of the query's items.

    `seen_bounded`: not all that the user has seen is stored, and seen items may be among the answer. `complete`: there
    are k items that the request lets pass. `cold` says which items no bundle has had; empty: none. `missing_features`
    are names that the bundle does not know.
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
        """Whether popular items replace an answer."""
        return self.vector is None


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a task from one `version`, and the seconds that its batch took."""

    version: str
    hits: list[Hits]
    tower_seconds: float
    search_seconds: float


def joined(answers: Sequence[Answer]) -> Answer:
    """Return the answers to the parts of a task, all of one version, as one."""
    return Answer(
        answers[0].version,
        [hits for answer in answers for hits in answer.hits],
        sum(answer.tower_seconds for answer in answers),
        sum(answer.search_seconds for answer in answers),
    )
