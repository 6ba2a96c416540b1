"""A query's way to an answer, before it is searched."""

from typing import NamedTuple

import numpy as np

from contracts import IndexRows
from serving.index import Found
from serving.queries import Query, Task
from serving.spread import DEEPER, Ranked

__all__ = ["Plan"]


class Plan(NamedTuple):
    """`place` is the query's row of the vectors, -1 where there is none; `excluded` is sorted.

    `seen_bounded` says that items may be missing from `excluded` that the user has seen.
    """

    task: Task
    query: Query
    place: int
    missing: list[str]
    excluded: IndexRows
    seen_bounded: bool = False

    @property
    def wanted(self) -> int:
        """How many rows must be found, so that enough remain once the excluded ones are removed."""
        return self.before_cap + len(self.excluded)

    @property
    def before_cap(self) -> int:
        """How many rows are found for an answer at first: more where a cap on tags may pass some over."""
        return self.query.k * (1 if self.task.cap is None else DEEPER)

    def kept(self, found: Found, threshold: float | None) -> Ranked:
        """Return scores and rows that are neither excluded nor below the threshold."""
        keep = found.rows >= 0
        if len(self.excluded):
            place = np.searchsorted(self.excluded, found.rows)
            keep &= self.excluded.take(place, mode="clip") != found.rows
        if threshold is not None:
            keep &= found.scores >= threshold
        return found.scores[keep], IndexRows(found.rows[keep])
