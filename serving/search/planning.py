"""Plans the searches of a batch of queries: their vectors, and the rows that each search leaves out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows, ItemKeys, SeenItems, UserKeys
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.histories.files import Histories, KnownUsers, nothing_known
from weir.serving.index.cold import WithCold
from weir.serving.index.diversity import DEEPER, Ranked
from weir.serving.index.eligibility import Eligibility, RowMask
from weir.serving.index.index import AnnIndex, Found
from weir.serving.index.popular import rows_in
from weir.serving.search.queries import ByEmbedding, ByHistory, ByItem, ByUser, Query, QueryFeatures, Task

__all__ = ["Plan", "Planner", "QueryVectors"]

Floats = npt.NDArray[np.float32]


class Plan(NamedTuple):
    """The plan of one query of a task.

    `place` is the query's row in the vectors of the batch, -1 if it has no vector. `missing` are its item ids that the
    bundle lacks, `missing_features` its features. `excluded` are the rows to leave out, sorted; `seen_bounded`: they
    may lack items that the user has seen. At least `candidates` items are re-scored; 0: no re-scoring.
    """

    task: Task
    query: Query
    place: int
    missing: list[str]
    excluded: IndexRows
    seen_bounded: bool = False
    candidates: int = 0
    missing_features: list[str] = []  # noqa: RUF012 - never changed

    @property
    def wanted(self) -> int:
        """Number of rows to fetch, so that `before_cap` rows remain once the excluded rows are removed."""
        return self.before_cap + len(self.excluded)

    @property
    def before_cap(self) -> int:
        """Number of eligible rows that the first search must find; with a tag cap, which may skip rows, more than k."""
        return max(self.candidates, self.query.k * (1 if self.task.cap is None else DEEPER))

    def kept(self, found: Found) -> Ranked:
        """Return the scores and rows of a search's result for this query, without excluded rows and padding."""
        keep = found.rows >= 0
        if len(self.excluded):
            place = np.searchsorted(self.excluded, found.rows)
            keep &= self.excluded.take(place, mode="clip") != found.rows
        return found.scores[keep], IndexRows(found.rows[keep])

    def first(self, ranked: Ranked) -> Ranked:
        """Return the first rows, as many as are re-scored; all rows without re-scoring."""
        scores, rows = ranked
        most = self.before_cap if self.candidates else len(rows)
        return scores[:most], IndexRows(rows[:most])

    def above(self, ranked: Ranked) -> Ranked:
        """Return the scores and rows at or above the task's score threshold; all rows without a threshold."""
        scores, rows = ranked
        if self.task.threshold is None:
            return ranked
        keep = scores >= self.task.threshold
        return scores[keep], IndexRows(rows[keep])


class QueryVectors:
    """Collects the queries of a batch and computes their vectors, with one tower run for all histories."""

    def __init__(self, bundle: LoadedBundle) -> None:
        self._bundle = bundle
        self._histories: list[IndexRows] = []
        self._said: list[Floats | None] = []
        self._ready: list[tuple[int, Floats]] = []
        self._count = 0

    def history(self, rows: IndexRows, said: Floats | None = None) -> int:
        """Add a user and return the place of its vector, -1 if it has none.

        `rows` is the user's history, -1 for unknown items, and `said` the user's feature vector (d,). Without both a
        known item and a feature vector, the user has no vector.
        """
        history = rows[rows >= 0]
        if not len(history) and said is None:
            return -1
        self._said.append(said)
        self._histories.append(IndexRows(history[-self._bundle.manifest.newest :]))
        self._count += 1
        return self._count - 1

    def item(self, row: int) -> int:
        """Add the vector of the item in a row, and return its place."""
        return self._add(self._bundle.exact.vectors[row])

    def given(self, source: ByEmbedding) -> int:
        """Add the vector given in a query, and return its place."""
        return self._add(self._bundle.normalised(source.values[None])[0])

    def _add(self, vector: Floats) -> int:
        self._ready.append((self._count, vector))
        self._count += 1
        return self._count - 1

    def made(self) -> Floats:
        """Return all added vectors by place, (count, dimension)."""
        vectors = np.empty((self._count, self._bundle.manifest.dimension), np.float32)
        ready = np.zeros(self._count, np.bool_)
        for place, vector in self._ready:
            vectors[place], ready[place] = vector, True
        if self._histories:
            vectors[~ready] = self._bundle.users_at(self._histories, self._all_said())
        return vectors

    def _all_said(self) -> Floats | None:
        """Return the feature vectors of all users, (histories, dimension); None if no user has features."""
        if all(said is None for said in self._said):
            return None
        nothing = np.zeros(self._bundle.manifest.dimension, np.float32)
        return np.stack([nothing if said is None else said for said in self._said])


_BLOCKED: Final = 1000
"""Most blocked rows that are removed after the search instead of by a filter, if lists cannot be chosen."""

_NO_ROWS: Final = IndexRows(np.empty(0, np.int64))


@dataclass(frozen=True)
class Planner:
    """Plans a batch of queries to one bundle; `eligibility` tells which rows of the bundle may be returned.

    `candidates` items per query are re-scored; 0: no re-scoring.
    """

    bundle: LoadedBundle
    histories: Histories
    eligibility: Eligibility
    candidates: int = 0
    _passing: dict[int, RowMask] = field(default_factory=dict, init=False)

    @cached_property
    def listed(self) -> AnnIndex | None:
        """The bundle's index if a search can choose its lists, else None."""
        index = self.bundle.index
        if isinstance(index, WithCold):
            index = index.inner
        return index if isinstance(index, AnnIndex) and index.chooses_lists else None

    def passing(self, task: Task) -> RowMask | None:
        """Return the rows that pass a task's filter; None if no filter is needed.

        Without a filter, the plans exclude the blocked rows.
        """
        if task.allowed is None and not task.tags.tags:
            few = len(self.eligibility.blocked) <= _BLOCKED and (self.listed is None or task.exact)
            if few or not self.eligibility.blocked:
                return None
        mask = self._passing.get(id(task))
        if mask is None:
            mask = self._passing[id(task)] = self.eligibility.passing(task.tags, task.allowed)
        return mask

    def plan(self, pairs: list[tuple[Task, Query]]) -> tuple[list[Plan], Floats]:
        """Return the plan of each query, and the vectors of the queries that have one, (places, dimension)."""
        users = self._users(pairs)
        histories, seen = self._histories_of(pairs, users), self._seen(users.seen)
        vectors = QueryVectors(self.bundle)
        said = QueryFeatures.of(self.bundle.user_features, [query.features for _, query in pairs])
        plans = []
        for number, (task, query) in enumerate(pairs):
            source = query.source
            if isinstance(source, ByUser):
                place = vectors.history(next(histories), said.of_query(number))
                rows, bounded = next(seen) if task.exclude_seen else (_NO_ROWS, False)
                plan = self._planned(task, query, place, [], rows)
                plans.append(plan._replace(seen_bounded=bounded, missing_features=said.missing[number]))
            elif isinstance(source, ByHistory):
                rows = next(histories)
                place = vectors.history(rows, said.of_query(number))
                missing = [source.ids[i] for i in np.flatnonzero(rows < 0)]
                plan = self._planned(task, query, place, missing, rows)
                plans.append(plan._replace(missing_features=said.missing[number]))
            elif isinstance(source, ByItem):
                row = int(self.bundle.rows_of(ItemKeys(np.array([source.key])))[0])
                plans.append(self._similar(task, query, source, row, vectors))
            else:
                plans.append(self._planned(task, query, vectors.given(source), [], _NO_ROWS))
        return plans, vectors.made()

    def _users(self, pairs: list[tuple[Task, Query]]) -> KnownUsers:
        """Look up the users of queries by user, and the seen items for tasks with `exclude_seen`."""
        users = [(query.source.key, task.exclude_seen) for task, query in pairs if isinstance(query.source, ByUser)]
        if not users:
            return nothing_known(0, 0)
        keys, asked = zip(*users, strict=True)
        return self.histories.look_up(UserKeys(np.array(keys, np.int64)), np.flatnonzero(asked))

    def _histories_of(self, pairs: list[tuple[Task, Query]], users: KnownUsers) -> Iterator[IndexRows]:
        """Yield the rows of each stored or given history, in the order of the queries; all are looked up at once."""
        stored = iter(users.items)
        keys = [
            next(stored) if isinstance(query.source, ByUser) else query.source.keys
            for _, query in pairs
            if isinstance(query.source, ByUser | ByHistory)
        ]
        if not keys:
            return
        rows = self.bundle.rows_of(ItemKeys(np.concatenate(keys)))
        for history in np.split(rows, np.cumsum([len(each) for each in keys[:-1]])):
            yield IndexRows(history)

    def _seen(self, seen: SeenItems) -> Iterator[tuple[IndexRows, bool]]:
        """Yield the rows of each user's seen items, and whether the seen items may be incomplete."""
        rows = self.bundle.rows_of(seen.items)
        for start, end, bounded in zip(seen.offsets[:-1], seen.offsets[1:], seen.bounded.tolist(), strict=True):
            yield IndexRows(rows[start:end]), bounded

    def _planned(self, task: Task, query: Query, place: int, missing: list[str], seen: IndexRows) -> Plan:
        """Return a plan that excludes the task's excluded items, `seen` rows and, without a filter, blocked rows."""
        rows: npt.NDArray[np.int64] = self.bundle.rows_of(task.excluded) if len(task.excluded) else _NO_ROWS
        if task.exclude_seen:
            rows = np.concatenate([rows, seen])
        if self.eligibility.blocked and self.passing(task) is None:
            rows = np.concatenate([rows, rows_in(self.eligibility.blocked)])
        excluded = IndexRows(np.sort(rows[rows >= 0])) if len(rows) else _NO_ROWS
        return Plan(task, query, place, missing, excluded, candidates=self.candidates if place >= 0 else 0)

    def _similar(self, task: Task, query: Query, source: ByItem, row: int, vectors: QueryVectors) -> Plan:
        """Return the plan of a query for items similar to the one in `row`, -1 if the bundle lacks it."""
        if row < 0:
            return self._planned(task, query, -1, [source.id], _NO_ROWS)
        plan = self._planned(task, query, vectors.item(row), [], _NO_ROWS)
        # No re-scoring: the scorer predicts the next item of a user, not similar items.
        return plan._replace(excluded=IndexRows(np.sort(np.append(plan.excluded, row))), candidates=0)
