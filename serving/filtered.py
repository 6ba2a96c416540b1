"""Filtered search: among the rows that pass a filter, in the nearest lists that hold them or by exact comparison.

Of the lists with passing rows, those nearest to the query are visited until they hold enough of these rows. How many
are enough depends on their spread: a filter that correlates with the clusters leaves fewer lists than a random one, and
its best rows are spread over more of them. In the visited lists FAISS checks every row; if few rows pass, gathering
their vectors costs less. If comparing all passing rows costs even less, that is done. `k` rows are found if that many
pass.
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
_faiss: Any = faiss  # the stubs of FAISS lack some names

_FEW: Final = 2000
"""Passing rows up to which all of them are always compared."""

_BLOCK: Final = 1 << 16
"""Rows whose vectors are gathered per block."""

_MULTIPLIED: Final = 0.004
"""Microseconds per query to compare a gathered vector, with `_MANY` queries or more."""

_MANY: Final = 8
"""Queries from which on a matrix product is used."""

_ANY: Final = 0.06
_FIRST: Final = 100.0
_WANTED: Final = 5.0
_ROOT: Final = 2.0
"""Terms of `filtered_cost` in microseconds: `_ANY` per item; with lists at most the sum of `_FIRST`, `_WANTED` per
wanted row, and `_ROOT` times the square root of wanted rows times lists."""


@dataclass(frozen=True)
class FilteredSearch:
    """Searches the rows of one version that pass a filter.

    `index` must support choosing lists (`AnnIndex.chooses_lists`); None: all passing rows are compared. Rows from
    `cold_from` on are cold items, which are not in any list (`weir.serving.cold`).
    """

    index: AnnIndex | None
    exact: Exact
    passing: Passing
    cold_from: int | None = None

    def search(self, queries: Floats, k: int, nprobe: int = 0, excluded: Sequence[IndexRows] = ()) -> Found:
        """Return the best `k` passing rows for each of `queries` (n, dimension), or all where there are fewer.

        `excluded` has the excluded rows of each query: the result has k other rows, and may also contain excluded
        ones. Results are padded with row -1. With `nprobe`, that many lists with passing rows are visited, or more
        until they hold k.
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
        """Search the rows before `row` in their lists, and compare those from it on."""
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
    """Estimate a query's filtered search in microseconds, before the number of passing rows is known.

    It is about the maximum: with fewer passing rows, comparing all of them gets cheaper, and visiting lists until they
    hold enough gets dearer. The square root comes from the number of rows at which both cost the same.
    """
    every, wanted = items * _ANY, max(k, LEAST)
    return min(every, _FIRST + _WANTED * wanted + _ROOT * math.sqrt(wanted * lists)) if lists else every
