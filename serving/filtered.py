"""Search among the rows that pass a filter: in the lists that hold them, or by comparing them all.

Lists without such a row are left out; of the others those nearest to the query are visited until they hold enough of
them. How many are enough depends on how the rows lie: a filter that follows the clusters leaves fewer lists than chance
would, and its best rows are spread over more of them. Rows are compared exactly where that costs less. Nothing is
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

_ENOUGH: Final = 16.0
_FOR_FEWER: Final = 12.0
_FOR_GAPS: Final = 160.0
_AT_MOST: Final = 112.0
"""Passing rows in the visited lists for each row wanted: where all rows pass; what is added, the fewer pass; and the
larger the share of the lists in which there are none though chance would put some there; the most of it."""

_UNEVEN: Final = 1.5
"""Variance of the share of rows that pass in a list, beside that of chance, from which on the filter follows lists."""

_NEARLY_ALL: Final = 0.9
"""Share of rows that pass, from which on as many lists are visited as without a filter."""

_GATHERED: Final = 0.05
_COMPARED: Final = 0.04
_MULTIPLIED: Final = 0.005
"""Microseconds to gather a vector, and to compare it with one query, or with each of eight or more."""

_MANY: Final = 8
"""Queries from which on a matrix is multiplied."""

_PROBE: Final = 100.0
_LIST: Final = 2.0
_CHECKED: Final = 0.01
"""Microseconds of a query to choose lists, to enter one, and to look a row up in it, whether it passes or not."""


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
        chosen = _nearest(lists, queries, depth)
        return _scanned(self.index, self.passing, queries, k, chosen)

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
        return _PROBE + share * len(lists.numbers) * (_LIST + _CHECKED * float(index.index.ntotal) / index.lists)


class _Depth(NamedTuple):
    """How far a search goes: so many `lists` at least, and until they hold so many passing `rows`, (queries,)."""

    lists: int
    rows: Int64


class _Chosen(NamedTuple):
    """Lists to visit, (queries, width), -1 where there are fewer, and the products with their centroids."""

    lists: Int64
    products: Floats


def filtered_cost(k: int, lists: int, items: int) -> float:
    """Estimate a query's search under a filter of which it is not known yet how many rows pass, in microseconds.

    It is the most that it may cost: the fewer rows pass, the cheaper it is to compare them, and the dearer to visit
    lists until enough of them are found.
    """
    every = items * (_GATHERED + _COMPARED)
    if not lists:
        return every
    crossing = math.sqrt(_AT_MOST * max(k, _LEAST) * lists * (_GATHERED + _COMPARED) * _LIST)
    return min(every, _PROBE + 2 * crossing)


def _lists_of(index: AnnIndex, passing: Passing) -> _Lists:
    """Return where the passing rows lie; worked out once."""
    known: _Lists | None = passing.kept.get("lists")
    if known is None:
        counts = np.bincount(index.lists_of(passing.array), minlength=index.lists)
        numbers = np.flatnonzero(counts)
        share = len(passing) / index.index.ntotal
        gaps = max(0.0, 1 - len(numbers) / float((1 - (1 - share) ** index.sizes).sum()))
        enough = min(_AT_MOST, _ENOUGH + _FOR_FEWER * (1 - share) ** 2 + _FOR_GAPS * gaps)
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
    while True:
        products, nearest = ExactIndex(lists.centroids).search(queries, tried)
        held = np.cumsum(lists.counts[nearest], axis=1)
        if tried == count or (held[:, -1] >= depth.rows).all():
            break
        tried = min(count, 4 * tried)
    widths = np.maximum((held < depth.rows[:, None]).sum(axis=1) + 1, depth.lists)
    width = min(int(widths.max()), tried)
    chosen = np.where(np.arange(width) < widths[:, None], lists.numbers[nearest[:, :width]], -1)
    return _Chosen(chosen, products[:, :width])


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
