"""Search among the rows that pass a filter: in the lists of an IVF index that hold them, or by comparing them all.

The lists with passing rows nearest to the query are visited until they hold enough passing rows. How many are enough
depends on their spread: a filter that correlates with the clusters leaves passing rows in fewer lists than a random
filter, and the best passing rows are spread over more of these lists. FAISS checks every row of the visited lists; if
few rows pass, gathering the vectors of the passing rows costs less. If comparing all passing rows costs even less, all
are compared. The result has `k` rows if that many pass.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.serving.index.eligibility import RowMask
from weir.serving.index.index import AnnIndex, Exact, ExactIndex, Found, best

__all__ = ["COMPARED", "GATHERED", "LEAST", "Depth", "FilteredSearch", "Lists", "Visit", "filtered_cost", "nothing"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_faiss: Any = faiss  # the stubs of FAISS lack some names

LEAST: Final = 100
"""Least number of rows for which the search depth is chosen; a smaller k is searched as deep."""

_ENOUGH: Final = 24.0
_FOR_GAPS: Final = 110.0
_MOST_FOR_GAPS: Final = 36.0
_AT_MOST: Final = 80.0
"""Passing rows to visit for each wanted row. `_ENOUGH`: if passing rows are spread over the lists at random.
`_FOR_GAPS`, at most `_MOST_FOR_GAPS`: added in proportion to the share of lists that are empty although a random spread
would put passing rows there. `_AT_MOST`: for a query whose nearest lists hold no passing rows."""

_DEPTH: Final = 16
"""Additional passing rows to visit for each excluded row near the query."""

_UNEVEN: Final = 1.5
"""Variance of the passing share per list, relative to a random spread, above which the filter follows the lists."""

_NEARLY_ALL: Final = 0.9
"""Share of passing rows from which on as many lists are visited as without a filter."""

GATHERED: Final = 0.05
COMPARED: Final = 0.015
_SCATTERED: Final = 0.08
"""Microseconds per row: to gather a vector in ascending order of rows, to compare it with a query, and to gather one
list by list."""

_PROBE: Final = 60.0
_LIST: Final = 0.5
_CHECKED: Final = 0.01
"""Microseconds: per query to choose lists, per list, and per row to check whether it passes."""

_MANY: Final = 8
"""Number of queries from which on vectors are compared by a matrix product."""

_ANY: Final = 0.06
_FIRST: Final = 100.0
_WANTED: Final = 5.0
_ROOT: Final = 2.0
"""Terms of `filtered_cost` in microseconds: `_ANY` per item; with lists at most the sum of `_FIRST`, `_WANTED` per
wanted row, and `_ROOT` times the square root of wanted rows times lists."""


class Lists(NamedTuple):
    """The m inverted lists that hold passing rows: `numbers` (m,), `counts` of passing rows (m,), and `centroids`.

    A search must visit at least `least` lists, and `enough` passing rows for each wanted row. `shares` (lists,) is the
    passing share of each list divided by the overall passing share; None if lists differ no more than at random.
    """

    numbers: Int64
    counts: Int64
    centroids: Floats
    least: int
    enough: float
    shares: Floats | None

    @classmethod
    def of(cls, index: AnnIndex, passing: RowMask) -> "Lists":
        """Return the lists that hold the passing rows; cached in `passing`."""
        lists: Lists | None = passing.kept.get("lists")
        if lists is None:
            lists = passing.kept["lists"] = _lists_with(index, passing)
        return lists

    def depth(self, index: AnnIndex, queries: Floats, k: int) -> "Depth":
        """Return the depth of a search for `k` rows: deeper for a query near which few rows pass."""
        enough = np.full(len(queries), self.enough)
        if self.shares is not None:
            near = ExactIndex(index.centroids).search(queries, index.visited).rows
            enough += (_AT_MOST - enough) * np.maximum(0, 1 - self.shares[near].mean(axis=1))
        return Depth(self.least, np.ceil(enough * max(k, LEAST)).astype(np.int64))

    def cost(self, index: AnnIndex, passing: RowMask, depth: "Depth") -> float:
        """Estimate the microseconds of a query at a depth, if its lists hold an average number of passing rows."""
        share = min(1.0, max(depth.lists / len(self.numbers), float(depth.rows.mean()) / len(passing)))
        visited, rows = share * len(self.numbers), share * len(passing)
        scanned = _scan_cost(visited * float(index.index.ntotal) / index.lists, rows)
        return _PROBE + visited * _LIST + min(scanned, _gather_cost(rows))


class Depth(NamedTuple):
    """How far a search goes: through at least `lists` lists, and until they hold `rows` (queries,) passing rows."""

    lists: int
    rows: Int64


class _Chosen(NamedTuple):
    """The `lists` that each query visits, (queries, width), padded with -1, and its `products` with their centroids."""

    lists: Int64
    products: Floats


@dataclass(frozen=True)
class Visit:
    """Searches the passing rows in the inverted lists nearest to each query.

    With `by_chance`, FAISS may choose the lists, if passing rows are spread over the lists at random.
    """

    index: AnnIndex
    exact: Exact
    passing: RowMask
    lists: Lists
    by_chance: bool

    def search(self, queries: Floats, k: int, depth: Depth) -> Found:
        """Return the best `k` passing rows for each query; at least `k` rows must pass."""
        if self.by_chance and (found := self._by_chance(queries, k, depth)) is not None:
            return found
        chosen = _nearest(self.lists, queries, depth)
        if _gathering_pays(self.index, self.lists, chosen):
            return self._gathered(queries, k, chosen)
        return _scanned(self.index, self.passing, queries, k, chosen)

    def one_by_one(self, queries: Floats, counts: Int64, depth: Depth, excluded: Sequence[IndexRows]) -> Found:
        """Return the best rows for each query without its `excluded` rows, query by query.

        `counts` (queries,) is the number of rows for each query; at least that many must pass and not be excluded.
        """
        scores, rows = nothing(len(queries), int(counts.max()))
        for at, (count, left_out) in enumerate(zip(counts.tolist(), excluded, strict=True)):
            if count:
                alone = slice(at, at + 1)
                deeper = self._deeper(queries[alone], Depth(depth.lists, depth.rows[alone]), left_out)
                with self.passing.without(left_out):
                    found = self.search(queries[alone], count, deeper)
                scores[alone, :count], rows[alone, :count] = found
        return Found(scores, rows)

    def _deeper(self, query: Floats, depth: Depth, left_out: IndexRows) -> Depth:
        """Return a greater depth for a query, to make up for excluded rows (`left_out`) in its nearest lists."""
        lists = _nearest(self.lists, query, depth).lists
        near = np.count_nonzero(np.isin(self.index.lists_of(left_out), lists))
        return Depth(depth.lists, depth.rows + _DEPTH * near)

    def _by_chance(self, queries: Floats, k: int, depth: Depth) -> Found | None:
        """Return the best `k` passing rows in lists that FAISS chooses, the same number for each query.

        None if passing rows are not spread at random, if gathering their vectors costs less, or if a query finds fewer
        than `k` rows.
        """
        rows = float(depth.rows.mean())
        visited = max(depth.lists, math.ceil(rows / float(self.lists.counts.mean())))
        scanned = _scan_cost(visited * float(self.index.index.ntotal) / self.index.lists, rows)
        if self.lists.shares is not None or visited > self.index.lists or _gather_cost(rows) < scanned:
            return None
        selector = _faiss.IDSelectorBitmap(self.passing.bits)
        parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=visited)
        scores, found = self.index.index.search(queries, k, params=parameters)
        return Found(scores, IndexRows(found)) if (found >= 0).all() else None

    def _gathered(self, queries: Floats, k: int, chosen: _Chosen) -> Found:
        """Return the best `k` passing rows of the chosen lists, by gathering and comparing their vectors."""
        by_list = _by_list(self.index, self.passing)
        found = [
            self.exact.search_among(queries[at : at + 1], k, self.passing.shown(by_list.rows_in(lists[lists >= 0])))
            for at, lists in enumerate(chosen.lists)
        ]
        scores, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Found(scores, IndexRows(rows))


class _ByList(NamedTuple):
    """Passing rows (n,) grouped by list: list i begins at ``starts[i]``; `starts` is (lists + 1,)."""

    rows: IndexRows
    starts: Int64

    def rows_in(self, lists: Int64) -> IndexRows:
        """Return the passing rows in the lists with these numbers."""
        starts = self.starts[lists]
        counts = self.starts[lists + 1] - starts
        ends = np.cumsum(counts)
        return IndexRows(self.rows[np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)])


def nothing(queries: int, k: int) -> Found:
    """Return a search result (queries, k) without rows: rows are -1, scores minus infinity."""
    return Found(np.full((queries, k), -np.inf, np.float32), IndexRows(np.full((queries, k), -1, np.int64)))


def _lists_with(index: AnnIndex, passing: RowMask) -> Lists:
    """Compute the lists that hold the passing rows, and how deep to search."""
    counts = np.bincount(index.lists_of(passing.array), minlength=index.lists)
    numbers = np.flatnonzero(counts)
    share = len(passing) / index.index.ntotal
    gaps = max(0.0, 1 - len(numbers) / float((1 - (1 - share) ** index.sizes).sum()))
    enough = _ENOUGH + min(_MOST_FOR_GAPS, _FOR_GAPS * gaps)
    least = index.visited if share >= _NEARLY_ALL else 1
    centroids = np.ascontiguousarray(index.centroids[numbers])
    return Lists(numbers, counts[numbers], centroids, least, enough, _shares(counts, index.sizes, share))


def _shares(counts: Int64, sizes: Int64, share: float) -> Floats | None:
    """Return each list's passing share, divided by the overall `share`; None if lists differ no more than at random.

    `counts` (lists,) are the passing rows in each list, `sizes` (lists,) all rows.
    """
    by_chance = share * sizes
    variance = float(((counts - by_chance) ** 2 / np.maximum(by_chance * (1 - share), 1e-9))[sizes > 0].mean())
    return (counts / np.maximum(by_chance, 1e-9)).astype(np.float32) if variance > _UNEVEN else None


def _nearest(lists: Lists, queries: Floats, depth: Depth) -> _Chosen:
    """Return the lists nearest to each query that a search of this depth visits."""
    count = len(lists.numbers)
    # Lists near the queries usually hold more than others.
    tried = min(count, max(depth.lists, int(depth.rows.max() / lists.counts.mean())) + 1)
    products = queries @ lists.centroids.T
    while True:
        nearest = _largest(products, tried)
        held = np.cumsum(lists.counts[nearest], axis=1)
        if tried == count or (held[:, -1] >= depth.rows).all():
            break
        tried = min(count, 4 * tried)
    widths = np.maximum((held < depth.rows[:, None]).sum(axis=1) + 1, depth.lists)
    width = min(int(widths.max()), tried)
    chosen = np.where(np.arange(width) < widths[:, None], lists.numbers[nearest[:, :width]], -1)
    return _Chosen(chosen, np.take_along_axis(products, nearest[:, :width], 1))


def _largest(values: Floats, count: int) -> Int64:
    """Return the columns of the `count` largest values in each row, largest first; faster than FAISS for hundreds."""
    places = np.argpartition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count :]
    order = np.argsort(-np.take_along_axis(values, places, 1), axis=1)
    ordered: Int64 = np.take_along_axis(places, order, 1)
    return ordered


def _gathering_pays(index: AnnIndex, lists: Lists, chosen: _Chosen) -> bool:
    """Return whether gathering the vectors of the passing rows costs less than scanning the chosen lists."""
    visited = chosen.lists[chosen.lists >= 0]
    held = float(lists.counts[np.searchsorted(lists.numbers, visited)].sum())
    return _gather_cost(held) < _scan_cost(float(index.sizes[visited].sum()), held)


def _gather_cost(rows: float) -> float:
    """Return the microseconds to gather and compare the vectors of rows list by list."""
    return rows * (_SCATTERED + COMPARED)


def _scan_cost(rows: float, passing: float) -> float:
    """Return the microseconds to check `rows` rows and compare the `passing` ones."""
    return rows * _CHECKED + passing * COMPARED


def _by_list(index: AnnIndex, passing: RowMask) -> _ByList:
    """Return the passing rows grouped by list; cached in `passing`."""
    grouped: _ByList | None = passing.kept.get("by list")
    if grouped is None:
        lists = index.lists_of(passing.array)
        order = np.argsort(lists, kind="stable")
        starts = np.searchsorted(lists[order], np.arange(index.lists + 1))
        grouped = passing.kept["by list"] = _ByList(IndexRows(passing.array[order]), starts)
    return grouped


def _scanned(index: AnnIndex, passing: RowMask, queries: Floats, k: int, chosen: _Chosen) -> Found:
    """Return the best `k` passing rows of the chosen lists, which FAISS scans with a selector of the passing rows."""
    shape = (len(queries), k)
    scores, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    given: tuple[npt.NDArray[Any], ...] = (queries, chosen.lists, chosen.products)
    given = tuple(map(np.ascontiguousarray, given))  # keeps the arrays alive while FAISS reads them
    vectors, lists, products = map(faiss.swig_ptr, given)
    selector = _faiss.IDSelectorBitmap(passing.bits)
    parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=chosen.lists.shape[1])
    # FAISS takes no keyword arguments, and its wrapper for arrays takes no search parameters.
    results = (faiss.swig_ptr(scores), faiss.swig_ptr(rows))
    index.index.search_preassigned_c(len(queries), vectors, k, lists, products, *results, *(False, parameters))
    return Found(scores, IndexRows(rows))


_FEW: Final = 2000
"""Number of passing rows up to which all passing rows are compared."""

_BLOCK: Final = 1 << 16
"""Rows whose vectors are gathered per block."""

_MULTIPLIED: Final = 0.004
"""Microseconds per query to compare a gathered vector, with `_MANY` queries or more."""


@dataclass(frozen=True)
class FilteredSearch:
    """Searches the rows of one bundle version that pass a filter.

    `index` must be able to search chosen lists (`AnnIndex.chooses_lists`); None: all passing rows are compared with
    `exact`. Rows from `cold_from` on are cold items, which are not in any list (`weir.serving.index.cold`).
    """

    index: AnnIndex | None
    exact: Exact
    passing: RowMask
    cold_from: int | None = None

    def search(self, queries: Floats, k: int, nprobe: int = 0, excluded: Sequence[IndexRows] = ()) -> Found:
        """Return the best `k` passing rows for each of `queries` (n, dimension), or all if fewer pass.

        `excluded` has the excluded rows of each query: the result has k rows that are not excluded, and may have
        excluded rows in addition. Results are padded with row -1. With `nprobe`, that many lists with passing rows are
        visited, or more until they hold k passing rows.
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
        """Yield the results for the passing rows before `row`, and for those from `row` on, which are in no list."""
        listed, cold = self.passing.split(row)
        before = [IndexRows(rows[rows < row]) for rows in excluded]
        yield replace(self, passing=listed, cold_from=None).search(queries, k, nprobe, before)
        behind = [IndexRows(rows[rows >= row]) for rows in excluded]
        yield replace(self, index=None, passing=cold, cold_from=None).search(queries, k, excluded=behind)

    def _compared(self, queries: Floats, k: int) -> Found:
        """Return the best `k` rows by comparing all passing rows, in blocks."""
        rows = self.passing.array
        blocks = (IndexRows(rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK))
        found = [self.exact.search_among(queries, k, block) for block in blocks]
        return found[0] if len(found) == 1 else best(found, k)

    def _exact_cost(self, queries: int) -> float:
        """Return the microseconds to compare all passing rows with this many queries."""
        each = _MULTIPLIED if queries >= _MANY else COMPARED
        return len(self.passing) * (GATHERED + each * queries)


def filtered_cost(k: int, lists: int, items: int) -> float:
    """Estimate the most that a query's filtered search costs, microseconds, whatever number of rows passes.

    With fewer passing rows, comparing all of them gets cheaper, and visiting lists until they hold enough gets dearer.
    The square root comes from the number of rows at which both cost the same.
    """
    every, wanted = items * _ANY, max(k, LEAST)
    return min(every, _FIRST + _WANTED * wanted + _ROOT * math.sqrt(wanted * lists)) if lists else every
