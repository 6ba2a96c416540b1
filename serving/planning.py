"""Turn the queries of a batch into vectors and plans: look up users, histories and excluded items."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows, ItemKeys, SeenItems, UserKeys
from weir.serving.bundle import LoadedBundle
from weir.serving.cold import WithCold
from weir.serving.index import AnnIndex
from weir.serving.known_users import Histories, KnownUsers, nothing_known
from weir.serving.plan import Plan
from weir.serving.queries import ByHistory, ByItem, ByUser, Query, Task
from weir.serving.rowsets import rows_in
from weir.serving.said import Said
from weir.serving.sieve import Passing, Sieve
from weir.serving.vectors import QueryVectors

__all__ = ["Planner"]

Floats = npt.NDArray[np.float32]

_BLOCKED: Final = 1000
"""Most blocked rows that are excluded after the search, instead of by a filter, if the index takes no selector."""

_NO_ROWS: Final = IndexRows(np.empty(0, np.int64))


@dataclass(frozen=True)
class Planner:
    """Plans a batch of queries of one bundle; `sieve` has its eligible rows.

    `candidates` per query are re-scored; 0: none.
    """

    bundle: LoadedBundle
    histories: Histories
    sieve: Sieve
    candidates: int = 0
    _passing: dict[int, Passing] = field(default_factory=dict, init=False)

    @cached_property
    def listed(self) -> AnnIndex | None:
        """The bundle's index if a search can choose its lists, else None."""
        index = self.bundle.index
        if isinstance(index, WithCold):
            index = index.inner
        return index if isinstance(index, AnnIndex) and index.chooses_lists else None

    def passing(self, task: Task) -> Passing | None:
        """Return the rows that pass a task's filter; None: no filter needed, plans exclude blocked rows themselves."""
        if task.allowed is None and not task.tags.tags:
            few = len(self.sieve.blocked) <= _BLOCKED and (self.listed is None or task.exact)
            if few or not self.sieve.blocked:
                return None
        known = self._passing.get(id(task))
        if known is None:
            known = self._passing[id(task)] = self.sieve.passing(task.tags, task.allowed)
        return known

    def plan(self, pairs: list[tuple[Task, Query]]) -> tuple[list[Plan], Floats]:
        """Return the plan of each query and the query vectors, (places, dimension)."""
        known = self._known(pairs)
        histories, seen = self._histories_of(pairs, known), self._seen(known.seen)
        vectors = QueryVectors(self.bundle)
        said = Said.of(self.bundle.user_features, [query.features for _, query in pairs])
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

    def _known(self, pairs: list[tuple[Task, Query]]) -> KnownUsers:
        """Look up the users among the queries, and the seen items for tasks with `exclude_seen`."""
        users = [(query.source.key, task.exclude_seen) for task, query in pairs if isinstance(query.source, ByUser)]
        if not users:
            return nothing_known(0, 0)
        keys, asked = zip(*users, strict=True)
        return self.histories.look_up(UserKeys(np.array(keys, np.int64)), np.flatnonzero(asked))

    def _histories_of(self, pairs: list[tuple[Task, Query]], known: KnownUsers) -> Iterator[IndexRows]:
        """Yield the rows of each stored or given history, in the order of the queries; all are looked up at once."""
        stored = iter(known.items)
        keys = [
            next(stored) if isinstance(query.source, ByUser) else query.source.keys
            for _, query in pairs
            if isinstance(query.source, ByUser | ByHistory)
        ]
        if not keys:
            return
        rows = self.bundle.rows_of(ItemKeys(np.concatenate(keys)))
        for found in np.split(rows, np.cumsum([len(each) for each in keys[:-1]])):
            yield IndexRows(found)

    def _seen(self, seen: SeenItems) -> Iterator[tuple[IndexRows, bool]]:
        """Yield the rows of each user's seen items, and whether they may be incomplete."""
        rows = self.bundle.rows_of(seen.items)
        for start, end, bounded in zip(seen.offsets[:-1], seen.offsets[1:], seen.bounded.tolist(), strict=True):
            yield IndexRows(rows[start:end]), bounded

    def _planned(self, task: Task, query: Query, place: int, missing: list[str], seen: IndexRows) -> Plan:
        rows: npt.NDArray[np.int64] = self.bundle.rows_of(task.excluded) if len(task.excluded) else _NO_ROWS
        if task.exclude_seen:
            rows = np.concatenate([rows, seen])
        if self.sieve.blocked and self.passing(task) is None:
            rows = np.concatenate([rows, rows_in(self.sieve.blocked)])
        excluded = IndexRows(np.sort(rows[rows >= 0])) if len(rows) else _NO_ROWS
        return Plan(task, query, place, missing, excluded, candidates=self.candidates if place >= 0 else 0)

    def _similar(self, task: Task, query: Query, source: ByItem, row: int, vectors: QueryVectors) -> Plan:
        if row < 0:
            return self._planned(task, query, -1, [source.id], _NO_ROWS)
        plan = self._planned(task, query, vectors.item(row), [], _NO_ROWS)
        # No re-scoring: the scorer predicts the next item of a user, not similar items.
        return plan._replace(excluded=IndexRows(np.sort(np.append(plan.excluded, row))), candidates=0)
