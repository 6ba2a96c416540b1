"""The plan of a query: its vector, the rows it excludes, and how many rows to fetch."""

from typing import NamedTuple

import numpy as np

from weir.contracts import IndexRows
from weir.serving.index import Found
from weir.serving.queries import Query, Task
from weir.serving.spread import DEEPER, Ranked

__all__ = ["Plan"]


class Plan(NamedTuple):
    """How to search for one query: `place` is its row in the batch's vectors, -1 without one; `excluded` is sorted.

    `seen_bounded`: `excluded` may lack items that the user has seen. At least `candidates` items are re-scored; 0: no
    re-scoring.
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
        """Number of rows to fetch, so that enough remain once the excluded ones are removed."""
        return self.before_cap + len(self.excluded)

    @property
    def before_cap(self) -> int:
        """Number of eligible rows that the first search must find: more with a tag cap, which may skip some."""
        return max(self.candidates, self.query.k * (1 if self.task.cap is None else DEEPER))

    def kept(self, found: Found) -> Ranked:
        """Return scores and rows that are not excluded."""
        keep = found.rows >= 0
        if len(self.excluded):
            place = np.searchsorted(self.excluded, found.rows)
            keep &= self.excluded.take(place, mode="clip") != found.rows
        return found.scores[keep], IndexRows(found.rows[keep])

    def first(self, ranked: Ranked) -> Ranked:
        """Return the rows to re-score; all rows without re-scoring."""
        scores, rows = ranked
        most = self.before_cap if self.candidates else len(rows)
        return scores[:most], IndexRows(rows[:most])

    def above(self, ranked: Ranked) -> Ranked:
        """Return the scores and rows at or above the task's threshold; all without one."""
        scores, rows = ranked
        if self.task.threshold is None:
            return ranked
        keep = scores >= self.task.threshold
        return scores[keep], IndexRows(rows[keep])
