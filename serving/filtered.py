"""Search among the rows that pass a filter: in the lists that hold them, or by comparing them all.

Lists without such a row are left out; of the others those nearest to the query are visited until they hold enough of
them. How many are enough depends on how the rows lie: a filter that follows the clusters leaves fewer lists than chance
would, and its best rows are spread over more of them. In the visited lists FAISS looks at every row; where few of them
pass, it costs less to gather the vectors of those. All passing rows are compared where even that costs less. Nothing is
fetched in vain, and `k` rows are found wherever so many exist.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from contracts import IndexRows
from serving.index import AnnIndex, Exact, ExactIndex, Found
from serving.sieve import Passing

__all__ = ["FilteredSearch", "filtered_cost"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_faiss: Any = faiss  # its stubs lack these

_FEW: Final = 2000
"""Rows that are compared exactly in any case."""

_BLOCK: Final = 1 << 16
"""Rows whose vectors are gathered at a time."""

_LEAST: Final = 100
"""Rows wanted; the depth for fewer is the same."""

_ENOUGH: Final = 24.0
_FOR_GAPS: Final = 160.0
_AT_MOST: Final = 88.0
"""Passing rows in the visited lists for each row wanted: where rows pass by chance; what is added, the larger the share
of the lists in which there are none though chance would put some there; the most of it."""

_UNEVEN: Final = 1.5
"""Variance of the share of rows that pass in a list, beside that of chance, from which on the filter follows lists."""

_NEARLY_ALL: Final = 0.9
"""Share of rows that pass, from which on as many lists are visited as without a filter."""

_GATHERED: Final = 0.05
_COMPARED: Final = 0.015
_MULTIPLIED: Final = 0.004
"""Microseconds to gather a vector, and to compare it with one query, or with each of eight or more."""

_MANY: Final = 8
"""Queries from which on a matrix is multiplied."""

_PROBE: Final = 60.0
_LIST: Final = 0.5
_CHECKED: Final = 0.01
"""Microseconds of a query to choose lists, for each of them, and to look up in it whether a row passes."""

_ANY: Final = 0.06
_FIRST: Final = 100.0
_WANTED: Final = 5.0
_ROOT: Final = 2.0
"""The estimate of `filtered_cost`, in microseconds: for each item; and with lists at most the sum of the others, one as
it is, one for each row wanted, and one for the root of rows wanted times lists."""


class _Lists(NamedTuple):
    """The lists that hold passing rows: their `numbers` (m,), how many each holds, `counts` (m,), and their centroids.

    A search is deep enough once it has visited `least` of them, which hold `enough` rows for each one wanted. Where
    lists differ more than by chance, `shares` (lists,) says how many of a list's rows pass, beside those of all lists.
    """

    numbers: Int64
    counts: Int64
    centroids: Floats
    least: int
    enough: float
    shares: Floats | None


@dataclass(frozen=True)
class FilteredSearch:
    """Searches the rows of one version that pass a filter.

    `index` has lists that can be chosen (`AnnIndex.chooses_lists`); None: all passing rows are compared.
    """

    index: AnnIndex | None
    exact: Exact
    passing: Passing

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` passing rows for each of `queries` (n, dimension), or all where there are fewer.

        With `nprobe`, so many of the lists that hold such rows are visited, or as many more as hold k.
        """
        k = min(k, len(self.passing))
        if not k or not len(queries):
            return Found(np.empty((len(queries), k), np.float32), IndexRows(np.empty((len(queries), k), np.int64)))
        if self.index is None or len(self.passing) <= _FEW:
            return self._compared(queries, k)
        lists = _lists_of(self.index, self.passing)
        depth = _Depth(nprobe, np.full(len(queries), k)) if nprobe else _depth(self.index, lists, queries, k)
        if not nprobe and self._exact_cost(len(queries)) <= len(queries) * self._probe_cost(self.index, lists, depth):
            return self._compared(queries, k)
        if not nprobe and (found := self._by_chance(self.index, lists, queries, k, depth)) is not None:
            return found
        chosen = _nearest(lists, queries, depth)
        if _gathering_pays(self.index, lists, chosen):
            return self._gathered(self.index, queries, k, chosen)
        return _scanned(self.index, self.passing, queries, k, chosen)

    def _by_chance(self, index: AnnIndex, lists: _Lists, queries: Floats, k: int, depth: "_Depth") -> Found | None:
        """Let FAISS choose lists, as many for each query, where one is as good as another and most rows in them pass.

        None: that is not so, or the lists of some query hold too few.
        """
        rows = float(depth.rows.mean())
        visited = max(depth.lists, math.ceil(rows / float(lists.counts.mean())))
        scanned = _scan_cost(visited * float(index.index.ntotal) / index.lists, rows)
        if lists.shares is not None or visited > index.lists or _gather_cost(rows) < scanned:
            return None
        selector = _faiss.IDSelectorBitmap(self.passing.bits)
        parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=visited)
        scores, found = index.index.search(queries, k, params=parameters)
        return Found(scores, IndexRows(found)) if (found >= 0).all() else None

    def _gathered(self, index: AnnIndex, queries: Floats, k: int, chosen: "_Chosen") -> Found:
        """Compare the passing rows of the chosen lists, query by query."""
        by_list = _by_list(index, self.passing)
        found = [
            self.exact.search_among(queries[at : at + 1], k, by_list.rows_in(lists[lists >= 0]))
            for at, lists in enumerate(chosen.lists)
        ]
        scores, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Found(scores, IndexRows(rows))

    def _compared(self, queries: Floats, k: int) -> Found:
        """Compare all passing rows, a block at a time."""
        rows = self.passing.array
        blocks = (IndexRows(rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK))
        found = [self.exact.search_among(queries, k, block) for block in blocks]
        if len(found) == 1:
            return found[0]
        scores, found_rows = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return Found(np.take_along_axis(scores, best, 1), IndexRows(np.take_along_axis(found_rows, best, 1)))

    def _exact_cost(self, queries: int) -> float:
        each = _MULTIPLIED if queries >= _MANY else _COMPARED
        return len(self.passing) * (_GATHERED + each * queries)

    def _probe_cost(self, index: AnnIndex, lists: _Lists, depth: "_Depth") -> float:
        """Return what a query costs whose lists hold as many passing rows as others."""
        share = min(1.0, max(depth.lists / len(lists.numbers), float(depth.rows.mean()) / len(self.passing)))
        visited, passing = share * len(lists.numbers), share * len(self.passing)
        scanned = _scan_cost(visited * float(index.index.ntotal) / index.lists, passing)
        return _PROBE + visited * _LIST + min(scanned, _gather_cost(passing))


class _Depth(NamedTuple):
    """How far a search goes: so many `lists` at least, and until they hold so many passing `rows`, (queries,)."""

    lists: int
    rows: Int64


class _Chosen(NamedTuple):
    """Lists to visit, (queries, width), -1 where there are fewer, and the products with their centroids."""

    lists: Int64
    products: Floats


class _ByList(NamedTuple):
    """Passing rows (n,), list by list: those of list i begin at ``starts[i]``, (lists + 1,)."""

    rows: IndexRows
    starts: Int64

    def rows_in(self, lists: Int64) -> IndexRows:
        """Return the rows of some lists."""
        starts = self.starts[lists]
        counts = self.starts[lists + 1] - starts
        ends = np.cumsum(counts)
        return IndexRows(self.rows[np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)])


def filtered_cost(k: int, lists: int, items: int) -> float:
    """Estimate a query's search under a filter of which it is not known yet how many rows pass, in microseconds.

    It is about the most that it may cost: the fewer rows pass, the cheaper it is to compare them, and the dearer to
    visit lists until enough of them are found. Both cost the same at some number of rows, which the root gives.
    """
    every, wanted = items * _ANY, max(k, _LEAST)
    return min(every, _FIRST + _WANTED * wanted + _ROOT * math.sqrt(wanted * lists)) if lists else every


def _lists_of(index: AnnIndex, passing: Passing) -> _Lists:
    """Return where the passing rows lie; worked out once."""
    known: _Lists | None = passing.kept.get("lists")
    if known is None:
        counts = np.bincount(index.lists_of(passing.array), minlength=index.lists)
        numbers = np.flatnonzero(counts)
        share = len(passing) / index.index.ntotal
        gaps = max(0.0, 1 - len(numbers) / float((1 - (1 - share) ** index.sizes).sum()))
        enough = min(_AT_MOST, _ENOUGH + _FOR_GAPS * gaps)
        least = index.visited if share >= _NEARLY_ALL else 1
        centroids = np.ascontiguousarray(index.centroids[numbers])
        known = _Lists(numbers, counts[numbers], centroids, least, enough, _shares(counts, index.sizes, share))
        passing.kept["lists"] = known
    return known


def _shares(counts: Int64, sizes: Int64, share: float) -> Floats | None:
    """Return the share of passing rows of each list, beside that of all; None where they differ as by chance."""
    by_chance = share * sizes
    variance = float(((counts - by_chance) ** 2 / np.maximum(by_chance * (1 - share), 1e-9))[sizes > 0].mean())
    return (counts / np.maximum(by_chance, 1e-9)).astype(np.float32) if variance > _UNEVEN else None


def _depth(index: AnnIndex, lists: _Lists, queries: Floats, k: int) -> _Depth:
    """Return how far to go for each query: the farther, the fewer of the rows pass that are nearest to it."""
    enough = np.full(len(queries), lists.enough)
    if lists.shares is not None:
        near = ExactIndex(index.centroids).search(queries, index.visited).rows
        enough += (_AT_MOST - enough) * np.maximum(0, 1 - lists.shares[near].mean(axis=1))
    return _Depth(lists.least, np.ceil(enough * max(k, _LEAST)).astype(np.int64))


def _nearest(lists: _Lists, queries: Floats, depth: _Depth) -> _Chosen:
    """Return the lists to visit for each query."""
    count = len(lists.numbers)
    # Lists near to queries hold more than others, as a rule.
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
    """Return the places of the `count` largest values of each row, in order: for hundreds faster than in FAISS."""
    places = np.argpartition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count :]
    order = np.argsort(-np.take_along_axis(values, places, 1), axis=1)
    ordered: Int64 = np.take_along_axis(places, order, 1)
    return ordered


def _gathering_pays(index: AnnIndex, lists: _Lists, chosen: _Chosen) -> bool:
    """Say whether few of the rows in the chosen lists pass."""
    visited = chosen.lists[chosen.lists >= 0]
    held = float(lists.counts[np.searchsorted(lists.numbers, visited)].sum())
    return _gather_cost(held) < _scan_cost(float(index.sizes[visited].sum()), held)


def _gather_cost(rows: float) -> float:
    return rows * (_GATHERED + _COMPARED)


def _scan_cost(rows: float, passing: float) -> float:
    return rows * _CHECKED + passing * _COMPARED


def _by_list(index: AnnIndex, passing: Passing) -> _ByList:
    """Return the passing rows by list; worked out once."""
    known: _ByList | None = passing.kept.get("by list")
    if known is None:
        lists = index.lists_of(passing.array)
        order = np.argsort(lists, kind="stable")
        starts = np.searchsorted(lists[order], np.arange(index.lists + 1))
        known = passing.kept["by list"] = _ByList(IndexRows(passing.array[order]), starts)
    return known


def _scanned(index: AnnIndex, passing: Passing, queries: Floats, k: int, chosen: _Chosen) -> Found:
    """Compare the passing rows of the chosen lists."""
    shape = (len(queries), k)
    scores, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    given: tuple[npt.NDArray[Any], ...] = (queries, chosen.lists, chosen.products)
    given = tuple(map(np.ascontiguousarray, given))  # what FAISS reads must live as long as the call
    vectors, lists, products = map(faiss.swig_ptr, given)
    selector = _faiss.IDSelectorBitmap(passing.bits)
    parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=chosen.lists.shape[1])
    # FAISS takes no keywords, and its wrapper for arrays no parameters.
    results = (faiss.swig_ptr(scores), faiss.swig_ptr(rows))
    index.index.search_preassigned_c(len(queries), vectors, k, lists, products, *results, *(False, parameters))
    return Found(scores, IndexRows(rows))
