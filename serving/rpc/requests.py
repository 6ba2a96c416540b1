"""Parses and checks requests: all limits, with the first problems reported at once, in time linear in the bytes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import MAX_ID_BYTES, ItemKeys, hash_id, hash_strings
from weir.contracts.interactions.features import MAX_VALUES
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import LimitsConfig
from weir.serving.errors import BundleVersionNotLoadedError, InvalidRequestError, NoCatalogueError, Violation
from weir.serving.index.diversity import TagCap
from weir.serving.index.eligibility import NO_TAGS, TagFilter
from weir.serving.search.cost import query_costs, task_cost
from weir.serving.search.queries import (
    NO_FEATURES,
    ByEmbedding,
    ByHistory,
    ByItem,
    ByUser,
    Features,
    Query,
    Source,
    Task,
)

__all__ = [
    "DEFAULT_K",
    "MAX_VIOLATIONS",
    "embed_task",
    "feature_values",
    "features_of",
    "item_ids",
    "retrieve_task",
    "wrong_length",
]


Fault = Callable[[str, str], None]
"""Takes the path of a faulty field, and the problem."""


def feature_values(queries: Sequence[pb.Query]) -> int:
    """Count the values of all features; a number or a feature without values counts as one."""
    return sum(max(len(one.values), 1) for query in queries for one in query.features.values())


def features_of(path: str, query: pb.Query, fault: Fault) -> Features:
    """Return the features of a query, sorted by name; report problems to `fault`."""
    if not query.features:
        return NO_FEATURES
    if query.WhichOneof("source") in {"embedding", "item_id"}:
        fault(f"{path}.features", "are given with an embedding or an item_id, allowed are user_id and history")
    found: dict[str, tuple[str, ...] | float] = {}
    # A protobuf map has no order: without sorting, equal requests could get different answers.
    for name, one in sorted(query.features.items()):
        place = f'{path}.features["{name}"]'
        if not name or _is_long(name):
            fault(place, f"has a name of {len(name.encode())} bytes, allowed are 1 to {MAX_ID_BYTES}")
        if one.HasField("number") == bool(one.values):
            came = "both values and a number" if one.values else "neither values nor a number"
            fault(place, f"has {came}, must have one of them")
        elif one.HasField("number"):
            found[name] = _number(place, one.number, fault)
        else:
            found[name] = _values(place, one.values, fault)
    return found


def _number(place: str, number: float, fault: Fault) -> float:
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(number)):
            fault(place, f"is {number}, must be a finite number (32 bits)")
    return number


def _values(place: str, values: Sequence[str], fault: Fault) -> tuple[str, ...]:
    if len(values) > MAX_VALUES:
        fault(place, f"has {len(values)} values, at most {MAX_VALUES} are allowed")
        return ()
    if longest := max((len(value.encode()) for value in values if _is_long(value)), default=0):
        fault(place, f"has a value of {longest} bytes, at most {MAX_ID_BYTES} are allowed")
    return tuple(values)


def _is_long(text: str) -> bool:
    # A character has at most four bytes.
    return len(text) > MAX_ID_BYTES // 4 and len(text.encode()) > MAX_ID_BYTES


DEFAULT_K: Final = 10
"""Default number of items per query."""

MAX_VIOLATIONS: Final = 16
"""Most problems of a request that are listed; the others are counted."""

_LONGEST: Final = 1e18
"""Largest length of an embedding: its inner products with items still fit into 32-bit floats."""

_NO_KEYS: Final = ItemKeys(np.empty(0, np.int64))

_SHORT: Final = MAX_ID_BYTES // 4
"""Characters of an id that always fit into `MAX_ID_BYTES`."""


def item_ids(request: pb.RetrieveRequest | pb.EmbedRequest, most_queries: int) -> int:
    """Count the item ids of a request, in its first `most_queries` queries only: a request with more is refused."""
    found = sum(len(query.history.item_ids) for query in request.queries[:most_queries])
    if isinstance(request, pb.RetrieveRequest):
        found += len(request.excluded_item_ids) + len(request.filter.allowed_item_ids)
    return found


def retrieve_task(request: pb.RetrieveRequest, bundle: LoadedBundle, limits: LimitsConfig) -> Task:
    """Check a Retrieve request against the limits and the bundle; raises a `RequestError`."""
    _require_version(request.bundle_version, bundle)
    check = _Check(bundle, limits)
    check.total(item_ids(request, limits.max_queries), feature_values(request.queries[: limits.max_queries]))
    queries = check.queries(request.queries, with_k=True)
    threshold = request.params.score_threshold if request.params.HasField("score_threshold") else None
    if threshold is not None and not math.isfinite(threshold):
        check.fault("params.score_threshold", f"is {threshold}, must be finite")
    excluded = check.ids("excluded_item_ids", request.excluded_item_ids, limits.max_excluded_item_ids)
    allowed = check.ids("filter.allowed_item_ids", request.filter.allowed_item_ids, limits.max_allowed_item_ids)
    tags = check.tags(request.filter) if request.HasField("filter") else NO_TAGS
    cap = check.cap(request.diversity) if request.HasField("diversity") else None
    check.raise_if_any()
    _require_catalogue(tags, cap, bundle)
    task = Task(
        bundle=bundle,
        queries=queries,
        exact=request.params.exact,
        nprobe=request.params.nprobe,
        threshold=threshold,
        exclude_seen=request.exclude_seen,
        excluded=excluded,
        allowed=allowed if len(allowed) else None,
        tags=tags,
        cap=cap,
        pinned=bool(request.bundle_version),
    )
    return check.cost(task)


def embed_task(request: pb.EmbedRequest, bundle: LoadedBundle, limits: LimitsConfig) -> Task:
    """Check an Embed request; raises a `RequestError`."""
    _require_version(request.bundle_version, bundle)
    check = _Check(bundle, limits)
    check.total(item_ids(request, limits.max_queries), feature_values(request.queries[: limits.max_queries]))
    queries = check.queries(request.queries, with_k=False)
    check.raise_if_any()
    return Task(bundle=bundle, queries=queries, find=False, pinned=bool(request.bundle_version))


def wrong_length(values: int, bundle: LoadedBundle) -> str:
    """Return the message for an embedding of `values` values, not the bundle's dimension."""
    return f"has {values} values, bundle {bundle.version} has {bundle.manifest.dimension} dimensions"


def _require_version(wanted: str, bundle: LoadedBundle) -> None:
    if wanted and wanted != bundle.version:
        raise BundleVersionNotLoadedError(wanted, bundle.version)


def _require_catalogue(tags: TagFilter, cap: TagCap | None, bundle: LoadedBundle) -> None:
    used = [f"filter.{name}_tags" for name, wanted in tags._asdict().items() if wanted]
    used += ["diversity"] if cap is not None else []
    if used and not bundle.has_catalogue:
        raise NoCatalogueError(used)


@dataclass
class _Check:
    """Parses a request and collects its problems, the first ones in full; results are valid only without any."""

    bundle: LoadedBundle
    limits: LimitsConfig
    violations: list[Violation] = field(default_factory=list)
    more: int = 0

    def fault(self, path: str, problem: str) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(path, problem))
        else:
            self.more += 1

    def raise_if_any(self) -> None:
        if self.violations:
            raise InvalidRequestError(self.violations, self.more)

    def total(self, ids: int, values: int) -> None:
        """Refuse a request with too many ids or feature values before any of them is read."""
        held = ((ids, "item ids", self.limits.max_item_ids), (values, "feature values", self.limits.max_feature_values))
        for count, what, most in held:
            if count > most:
                self.fault("", f"the request holds {count} {what}, at most {most} are allowed: send several requests")
        self.raise_if_any()

    def cost(self, task: Task) -> Task:
        """Return the task with its costs; refuse one that costs too much, and say how many such queries are allowed."""
        costs = query_costs(task)
        task = replace(task, costs=costs)
        cost, most = task_cost(task), self.limits.max_cost
        if cost <= most:
            return task
        dearest = max(costs)
        fitting = int((most - cost + sum(costs)) / dearest)
        advice = f"send at most {fitting} such queries in a request" if fitting else "a single such query is too much"
        problem = (
            f"cost {cost:,.0f}, at most {most:,} is allowed (GetInfo, limits.max_cost); the dearest of these "
            f"{len(task.queries)} queries costs {dearest:,.0f}: {advice}, or lower k, nprobe, excluded or history ids"
        )
        raise InvalidRequestError([Violation("queries", problem)])

    def queries(self, queries: Sequence[pb.Query], *, with_k: bool) -> tuple[Query, ...]:
        if not 1 <= len(queries) <= self.limits.max_queries:
            self.fault("queries", f"holds {len(queries)}, must hold from 1 to {self.limits.max_queries}")
            return ()
        return tuple(
            Query(
                source,
                self.k(f"queries[{number}].k", query) if with_k else DEFAULT_K,
                features_of(f"queries[{number}]", query, self.fault),
            )
            for number, query in enumerate(queries)
            if (source := self.source(f"queries[{number}]", query)) is not None
        )

    def k(self, path: str, query: pb.Query) -> int:
        k = query.k if query.HasField("k") else min(DEFAULT_K, self.limits.max_k)
        if not 1 <= k <= self.limits.max_k:
            self.fault(path, f"is {k}, must be from 1 to {self.limits.max_k}")
        return k

    def source(self, path: str, query: pb.Query) -> Source | None:
        match query.WhichOneof("source"):
            case "user_id":
                self.id(f"{path}.user_id", query.user_id)
                return ByUser(hash_id(query.user_id, self.bundle.key_secret))
            case "history":
                ids = query.history.item_ids
                keys = self.ids(f"{path}.history.item_ids", ids, self.limits.max_history_item_ids)
                return ByHistory(tuple(ids), keys)
            case "embedding":
                return ByEmbedding(self.embedding(f"{path}.embedding", query.embedding))
            case "item_id":
                self.id(f"{path}.item_id", query.item_id)
                return ByItem(query.item_id, hash_id(query.item_id, self.bundle.key_secret))
            case _:
                self.fault(path, "has no source: set user_id, history, embedding or item_id")
                return None

    def embedding(self, path: str, embedding: pb.Embedding) -> npt.NDArray[np.float32]:
        dimension = self.bundle.manifest.dimension
        if len(embedding.values) != dimension:
            self.fault(path, wrong_length(len(embedding.values), self.bundle))
            return np.zeros(dimension, np.float32)
        values = np.array(embedding.values, np.float32)
        if wrong := np.flatnonzero(~np.isfinite(values)).tolist():
            self.fault(path, f"value {wrong[0]} is {values[wrong[0]]}, must be finite ({len(wrong)} are not)")
            return values
        length = float(np.linalg.norm(values.astype(np.float64)))
        if not length:
            self.fault(path, "is zero in all values, must point somewhere")
        elif self.bundle.manifest.metric != "cosine" and length > _LONGEST:
            self.fault(path, f"has length {length:.3g}, at most {_LONGEST:.0e} is allowed: scores would overflow")
        return values

    def tags(self, wanted: pb.Filter) -> TagFilter:
        return TagFilter(
            *(self.tag_list(f"filter.{name}_tags", getattr(wanted, f"{name}_tags")) for name in TagFilter._fields)
        )

    def cap(self, wanted: pb.Diversity) -> TagCap:
        if not 1 <= wanted.max_per_tag <= self.limits.max_k:
            self.fault("diversity.max_per_tag", f"is {wanted.max_per_tag}, must be from 1 to {self.limits.max_k}")
        if wanted.tag_prefix:
            self.id("diversity.tag_prefix", wanted.tag_prefix)
        return TagCap(wanted.max_per_tag, wanted.tag_prefix)

    def tag_list(self, path: str, wanted: Sequence[str]) -> tuple[str, ...]:
        most = self.limits.max_filter_tags
        if len(wanted) > most:
            self.fault(path, f"holds {len(wanted)} tags, at most {most} are allowed")
            return ()
        for number, tag in enumerate(wanted):
            self.id(f"{path}[{number}]", tag)
        return tuple(sorted(set(wanted)))

    def id(self, path: str, raw: str) -> None:
        if not raw:
            self.fault(path, "is empty")
        elif len(raw) > _SHORT and (size := len(raw.encode())) > MAX_ID_BYTES:
            self.fault(path, f"has {size} bytes, at most {MAX_ID_BYTES} are allowed")

    def ids(self, path: str, ids: Iterable[str], most: int) -> ItemKeys:
        known = list(ids)
        if not known:
            return _NO_KEYS
        if len(known) > most:
            self.fault(path, f"holds {len(known)} ids, at most {most} are allowed")
            return _NO_KEYS
        if min(map(len, known)) == 0 or max(map(len, known)) > _SHORT:
            for number, raw in enumerate(known):
                self.id(f"{path}[{number}]", raw)
        return ItemKeys(hash_strings(known, self.bundle.key_secret))
