"""A query's way to an answer, before it is searched."""

from typing import NamedTuple

import numpy as np

from weir.contracts import IndexRows
from weir.serving.index import Found
from weir.serving.queries import Query, Task
from weir.serving.spread import DEEPER, Ranked

__all__ = ["Plan"]


class Plan(NamedTuple):
    """`place` is the query's row of the vectors, -1 where there is none; `excluded` is sorted.

    `seen_bounded` says that items may be missing from `excluded` that the user has seen. So many `candidates`, or as
    many as are wanted, are scored again; 0: none.
    """

    task: Task
    query: Query
    place: int
    missing: list[str]
    excluded: IndexRows
    seen_bounded: bool = False
    candidates: int = 0
    missing_features: list[str] = []  # noqa: RUF012 - nobody changes it

    @property
    def wanted(self) -> int:
        """How many rows must be found, so that enough remain once the excluded ones are removed."""
        return self.before_cap + len(self.excluded)

    @property
    def before_cap(self) -> int:
        """How many rows are found for an answer at first: more where a cap on tags may pass some over."""
        return max(self.candidates, self.query.k * (1 if self.task.cap is None else DEEPER))

    def kept(self, found: Found) -> Ranked:
        """Return scores and rows that are not excluded."""
        keep = found.rows >= 0
        if len(self.excluded):
            place = np.searchsorted(self.excluded, found.rows)
            keep &= self.excluded.take(place, mode="clip") != found.rows
        return found.scores[keep], IndexRows(found.rows[keep])

    def first(self, ranked: Ranked) -> Ranked:
        """Return as many candidates as are scored again; all, where none are."""
        scores, rows = ranked
        most = self.before_cap if self.candidates else len(rows)
        return scores[:most], IndexRows(rows[:most])

    def above(self, ranked: Ranked) -> Ranked:
        """Return scores and rows that are not below the threshold, if there is one."""
        scores, rows = ranked
        if self.task.threshold is None:
            return ranked
        keep = scores >= self.task.threshold
        return scores[keep], IndexRows(rows[keep])
