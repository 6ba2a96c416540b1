"""Search among the rows that pass a filter: in the lists that hold them, or by comparing them all.

Lists without such a row are left out; of the others those nearest to the query are visited until they hold enough of
them. How many are enough depends on how the rows lie: a filter that follows the clusters leaves fewer lists than chance
would, and its best rows are spread over more of them. In the visited lists FAISS looks at every row; where few of them
pass, it costs less to gather the vectors of those. All passing rows are compared where even that costs less. Nothing is
fetched that is not used, and `k` rows are found wherever so many exist.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.serving.index import AnnIndex, Exact, Found, best
from weir.serving.sieve import Passing
from weir.serving.visits import COMPARED, GATHERED, LEAST, Depth, Lists, Visit, nothing

__all__ = ["FilteredSearch", "filtered_cost"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_faiss: Any = faiss  # its stubs lack these

_FEW: Final = 2000
"""Rows that are compared exactly in any case."""

_BLOCK: Final = 1 << 16
"""Rows whose vectors are gathered at a time."""

_MULTIPLIED: Final = 0.004
"""Microseconds to compare a gathered vector with each of eight queries or more."""

_MANY: Final = 8
"""Queries from which on a matrix is multiplied."""

_ANY: Final = 0.06
_FIRST: Final = 100.0
_WANTED: Final = 5.0
_ROOT: Final = 2.0
"""The estimate of `filtered_cost`, in microseconds: for each item; and with lists at most the sum of the others, one as
it is, one for each row wanted, and one for the root of rows wanted times lists."""


@dataclass(frozen=True)
class FilteredSearch:
    """Searches the rows of one version that pass a filter.

    `index` has lists that can be chosen (`AnnIndex.chooses_lists`); None: all passing rows are compared. Rows from
    `cold_from` on are in no list (`weir.serving.cold`).
    """

    index: AnnIndex | None
    exact: Exact
    passing: Passing
    cold_from: int | None = None

    def search(self, queries: Floats, k: int, nprobe: int = 0, excluded: Sequence[IndexRows] = ()) -> Found:
        """Return the best `k` passing rows for each of `queries` (n, dimension), or all where there are fewer.

        `excluded` has the rows that a query leaves out, for each one: k others are found, and there may be some of them
        besides. A row of -1 is none. With `nprobe`, so many of the lists that hold passing rows are visited, or as many
        more as hold k.
        """
        left_out = np.array([self.passing.among(rows) for rows in excluded] or [0] * len(queries), np.int64)
        most = min(k + int(left_out.max(initial=0)), len(self.passing))
        if not most or not len(queries):
            return nothing(len(queries), most)
        if self.index is None or len(self.passing) <= _FEW:
            return self._compared(queries, most)
        if self.cold_from is not None:
            return best(self._apart(self.cold_from, queries, k, nprobe, excluded), most)
        lists = Lists.of(self.index, self.passing)
        lowest, rows = (nprobe, np.full(len(queries), k)) if nprobe else lists.depth(self.index, queries, k)
        depth = Depth(lowest, rows + left_out)
        if not nprobe and self._exact_cost(len(queries)) <= len(queries) * lists.cost(self.index, self.passing, depth):
            return self._compared(queries, most)
        visit = Visit(self.index, self.exact, self.passing, lists, by_chance=not nprobe)
        if not left_out.any():
            return visit.search(queries, most, depth)
        return visit.one_by_one(queries, np.minimum(k, len(self.passing) - left_out), depth, excluded)

    def _apart(self, row: int, queries: Floats, k: int, nprobe: int, excluded: Sequence[IndexRows]) -> Iterator[Found]:
        """Search the rows before one in their lists, and compare those from it on."""
        listed, cold = self.passing.split(row)
        before = [IndexRows(rows[rows < row]) for rows in excluded]
        yield replace(self, passing=listed, cold_from=None).search(queries, k, nprobe, before)
        behind = [IndexRows(rows[rows >= row]) for rows in excluded]
        yield replace(self, index=None, passing=cold, cold_from=None).search(queries, k, excluded=behind)

    def _compared(self, queries: Floats, k: int) -> Found:
        """Compare all passing rows, a block at a time."""
        rows = self.passing.array
        blocks = (IndexRows(rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK))
        found = [self.exact.search_among(queries, k, block) for block in blocks]
        return found[0] if len(found) == 1 else best(found, k)

    def _exact_cost(self, queries: int) -> float:
        each = _MULTIPLIED if queries >= _MANY else COMPARED
        return len(self.passing) * (GATHERED + each * queries)


def filtered_cost(k: int, lists: int, items: int) -> float:
    """Estimate a query's search under a filter of which it is not known yet how many rows pass, in microseconds.

    It is about the most that it may cost: the fewer rows pass, the cheaper it is to compare them, and the dearer to
    visit lists until enough of them are found. Both cost the same at some number of rows, which the root gives.
    """
    every, wanted = items * _ANY, max(k, LEAST)
    return min(every, _FIRST + _WANTED * wanted + _ROOT * math.sqrt(wanted * lists)) if lists else every
