"""Search among the rows that pass a filter: in the lists that hold them, or by comparing them all.

Lists without such a row are left out; of the others those nearest to the query are visited until they hold enough of
them. How many are enough depends on how the rows lie: a filter that follows the clusters leaves fewer lists than chance
would, and their nearest rows are in more of them. Rows are compared exactly where that costs less. Nothing is fetched
in vain, and as many rows as exist are found, up to `k`.
"""

from typing import Any, Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from contracts import IndexRows
from serving.index import AnnIndex, Exact, Found
from serving.sieve import Passing

__all__ = ["filtered_cost", "search_passing"]

Floats = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_FEW: Final = 2000
"""Rows that are compared exactly in any case."""

_BLOCK: Final = 1 << 16
"""Rows whose vectors are gathered at a time."""

_ENOUGH: Final = 20
_ENOUGH_TOGETHER: Final = 80
"""Passing rows that the visited lists hold for each one wanted: at random places, and in few lists."""

_LEAST: Final = 100
"""Rows wanted, below which no fewer are visited."""

_TOGETHER: Final = 0.5
"""Share of the lists that chance would give a filter's rows; with fewer they lie together."""

_GATHERED: Final = 0.05
_COMPARED: Final = 0.03
_MULTIPLIED: Final = 0.005
"""Microseconds to gather a vector, and to compare it with one query, alone or with eight or more."""

_PROBE: Final = 120.0
_LIST: Final = 1.0
_CHECKED: Final = 0.002
_SCANNED: Final = 0.015
"""Microseconds of a query to choose lists, to enter one, to check a row's bit there, and to compare it if that is set."""


class _Lists(NamedTuple):
    """The lists that hold passing rows: their `numbers` (m,), how many rows each holds (m,), and their centroids."""

    numbers: Int64
    counts: Int64
    centroids: Floats
    together: bool


def search_passing(
    index: AnnIndex | None, exact: Exact, queries: Floats, k: int, passing: Passing, nprobe: int = 0
) -> Found:
    """Return the best `k` passing rows for each of `queries` (n, dimension), or all where there are fewer.

    `index` has lists that can be chosen (`AnnIndex.chooses_lists`); None: rows are compared exactly. `nprobe`: so many of
    the lists that hold such rows are visited, 0: as many as it takes.
    """
    k = min(k, len(passing))
    if not k or not len(queries):
        return Found(np.empty((len(queries), k), np.float32), IndexRows(np.empty((len(queries), k), np.int64)))
    if index is None or len(passing) <= _FEW:
        return _compared(exact, queries, k, passing)
    lists = _lists_of(index, passing)
    enough = k if nprobe else _enough(k, lists)
    wanted = nprobe or _expected(index, lists, enough)
    if not nprobe and _exact_cost(passing, len(queries)) <= len(queries) * _probe_cost(
        index, passing, wanted, len(lists.numbers)
    ):
        return _compared(exact, queries, k, passing)
    return _probed(index, lists, queries, k, passing, (wanted, enough))


def filtered_cost(k: int, lists: int, items: int) -> float:
    """Estimate a query's search under a filter of which it is not known yet how many rows pass, in microseconds.

    It is the most that either way may cost: the fewer rows pass, the cheaper the one, and the dearer the other.
    """
    every = items * (_GATHERED + _COMPARED)
    if not lists:
        return every
    crossing = (_ENOUGH_TOGETHER * max(k, _LEAST) * lists * (_GATHERED + _COMPARED) * _LIST) ** 0.5
    return min(every, _PROBE + 2 * crossing)


def _compared(exact: Exact, queries: Floats, k: int, passing: Passing) -> Found:
    """Compare all passing rows, a block at a time."""
    rows = passing.array
    found = [exact.search_among(queries, k, IndexRows(rows[at : at + _BLOCK])) for at in range(0, len(rows), _BLOCK)]
    if len(found) == 1:
        return found[0]
    scores = np.concatenate([one.scores for one in found], axis=1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    rows_found = np.concatenate([one.rows for one in found], axis=1)
    return Found(np.take_along_axis(scores, best, 1), IndexRows(np.take_along_axis(rows_found, best, 1)))


def _lists_of(index: AnnIndex, passing: Passing) -> _Lists:
    """Return where the passing rows lie; worked out once."""
    known = passing.kept.get("lists")
    if known is None:
        counts = np.bincount(index.lists_of(passing.array), minlength=index.lists)
        numbers = np.flatnonzero(counts)
        by_chance = index.lists * -np.expm1(-len(passing) / index.lists)
        together = len(numbers) < _TOGETHER * by_chance
        known = _Lists(numbers, counts[numbers], np.ascontiguousarray(index.centroids[numbers]), together)
        passing.kept["lists"] = known
    return known


def _enough(k: int, lists: _Lists) -> int:
    return (_ENOUGH_TOGETHER if lists.together else _ENOUGH) * max(k, _LEAST)


def _expected(index: AnnIndex, lists: _Lists, enough: int) -> int:
    """Return how many lists are likely to be visited: as many as the index visits without a filter at least."""
    return max(int(np.ceil(enough / lists.counts.mean())), index.visited)


def _exact_cost(passing: Passing, queries: int) -> float:
    each = _MULTIPLIED if queries >= 8 else _COMPARED
    return len(passing) * (_GATHERED + each * queries)


def _probe_cost(index: AnnIndex, passing: Passing, visited: int, lists: int) -> float:
    share = min(1.0, visited / lists)
    per_list = index.index.ntotal / index.lists
    return _PROBE + share * (lists * (_LIST + per_list * _CHECKED) + len(passing) * _SCANNED)


def _probed(index: AnnIndex, lists: _Lists, queries: Floats, k: int, passing: Passing, depth: tuple[int, int]) -> Found:
    """Visit the nearest lists: `depth` says how many at least, and how many passing rows they must hold."""
    least, enough = depth
    scores = queries @ lists.centroids.T
    tried = min(len(lists.numbers), 2 * least)
    while True:
        nearest = _largest(scores, tried)
        held = np.cumsum(lists.counts[nearest], axis=1)
        if tried == len(lists.numbers) or (held[:, -1] >= enough).all():
            break
        tried = min(len(lists.numbers), 4 * tried)
    widths = np.maximum((held < enough).sum(axis=1) + 1, min(least, tried))
    width = min(int(widths.max()), tried)
    chosen = np.where(np.arange(width) < widths[:, None], lists.numbers[nearest[:, :width]], -1)
    centred = np.take_along_axis(scores, nearest[:, :width], axis=1)
    return _scanned(index.index, queries, k, chosen, centred, passing)


def _largest(scores: Floats, count: int) -> Int64:
    """Return the columns of the `count` largest scores of each row, the largest first."""
    if count < scores.shape[1]:
        columns = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    else:
        columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _scanned(index: Any, queries: Floats, k: int, chosen: Int64, centred: Floats, passing: Passing) -> Found:
    """Compare the passing rows of the chosen lists, (queries, width), -1 where there are fewer."""
    count, width = chosen.shape
    queries, chosen = np.ascontiguousarray(queries), np.ascontiguousarray(chosen, np.int64)
    centred = np.ascontiguousarray(centred, np.float32)
    scores, rows = np.empty((count, k), np.float32), np.empty((count, k), np.int64)
    selector = faiss.IDSelectorBitmap(passing.bits)
    parameters = faiss.SearchParametersIVF(sel=selector, nprobe=width)
    taken = (faiss.swig_ptr(each) for each in (queries, chosen, centred, scores, rows))
    vectors, lists, distances, found_scores, found_rows = taken
    index.search_preassigned_c(count, vectors, k, lists, distances, found_scores, found_rows, False, parameters)  # noqa: FBT003
    return Found(scores, IndexRows(rows))
