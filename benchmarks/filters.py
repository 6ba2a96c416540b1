"""CPU and recall of a query under a filter, beside the other ways to search, in the same run.

    python -m benchmarks.filters
    python -m benchmarks.filters --items 100000 --queries 24

Vectors lie in clusters; filters let a share of the items pass: drawn at random, whole clusters, or two tags, one of
either kind, with seen items and a list of allowed ones. The ways are: the index with a selector at several numbers of
lists, fetching more and filtering afterwards, comparing all passing rows, and the server's
(`weir.serving.index.probing`). The best of the others is the cheapest with a recall of .95 or more; it leaves out seen
items for free. "once" is what the first query with a filter of two tags pays in addition. `--every` prints every way;
`--batch` sets how many queries share a search.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from benchmarks.harness import F32, command_line, head, recall, row, unit
from weir.contracts import IndexRows
from weir.serving.index.eligibility import RowMask
from weir.serving.index.index import AnnIndex, ExactIndex, on_device
from weir.serving.index.popular import rowset
from weir.serving.index.probing import FilteredSearch

Rows = npt.NDArray[np.int64]

app = command_line(__doc__)

DIMENSION: Final = 64
K: Final = 100
SHARES: Final = (1.0, 0.5, 0.1, 0.03, 0.01, 0.001, 0.0001)
RECALL: Final = 0.95
OVERFETCHED: Final = 20_000
SEEN: Final = 500
ALLOWED: Final = 10_000
_faiss: Any = faiss  # its stubs lack these


class Timed(NamedTuple):
    """A way to search: microseconds of CPU per query, and the recall."""

    name: str
    micros: float
    recall: float


@dataclass
class Data:
    """Vectors (items, dimension) of unit length, the cluster of each, queries, and the index with its rows' lists."""

    vectors: F32
    cluster: Rows
    queries: F32
    index: AnnIndex

    @classmethod
    def made(cls, items: int, queries: int) -> "Data":
        """Draw clusters of clusters, as items of a catalogue lie, and train an index as the exporter does."""
        rng = np.random.default_rng(0)
        clusters = max(16, items // 200)
        above = unit(rng.standard_normal((max(4, clusters // 25), DIMENSION), dtype=np.float32))
        centres = unit(above[rng.integers(0, len(above), clusters)] + 0.9 * unit(_normal(rng, clusters)))
        sizes = rng.permutation(1 / (np.arange(clusters) + 20.0) ** 0.8)
        cluster = rng.choice(clusters, items, p=sizes / sizes.sum())
        vectors = _near(rng, centres[cluster], 0.8)
        asked = _near(rng, centres[rng.choice(clusters, queries, p=sizes / sizes.sum())], 0.9)
        lists = max(16, int(4 * items**0.5))
        built: Any = faiss.index_factory(DIMENSION, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
        built.cp.niter, built.cp.max_points_per_centroid = 6, 40
        built.train(vectors[: 40 * lists])
        built.add(vectors)
        return cls(vectors, cluster, asked, on_device(built, {"nprobe": 16}, "cpu"))

    def passing(self, share: float, *, together: bool) -> Rows:
        """Return the rows of a filter: drawn at random, or whole clusters until there are enough."""
        count = max(1, round(share * len(self.vectors)))
        rng = np.random.default_rng(7)
        if not together:
            return np.sort(rng.choice(len(self.vectors), count, replace=False))
        order = rng.permutation(int(self.cluster.max()) + 1)
        return np.sort(np.argsort(order[self.cluster], kind="stable")[:count])


def _normal(rng: np.random.Generator, rows: int) -> F32:
    return rng.standard_normal((rows, DIMENSION), dtype=np.float32)


def _near(rng: np.random.Generator, centres: F32, spread: float) -> F32:
    return unit(centres + np.float32(spread / DIMENSION**0.5) * _normal(rng, len(centres)))


def _truth(data: Data, rows: Rows, k: int) -> list[Rows]:
    """Return the best passing rows of each query, by comparing them all, a block at a time."""
    found = [
        ExactIndex(data.vectors).search_among(data.queries, k, IndexRows(rows[at : at + 100_000]))
        for at in range(0, len(rows), 100_000)
    ]
    scores = np.concatenate([one.scores for one in found], axis=1)
    best = np.argsort(-scores, axis=1)[:, :k]
    return list(np.take_along_axis(np.concatenate([one.rows for one in found], axis=1), best, 1))


def _timed(name: str, search: Callable[[F32], Rows], data: Data, truth: list[Rows], batch: int) -> Timed:
    """Ask all queries, a batch at a time, as often as a third of a second allows."""
    parts = [data.queries[at : at + batch] for at in range(0, len(data.queries), batch)]
    found = [rows for part in parts for rows in search(part)]
    started, asked = time.process_time(), 0
    while asked < len(data.queries) or time.process_time() - started < 0.3:
        part = parts[asked // batch % len(parts)]
        search(part)
        asked += len(part)
    micros = 1e6 * (time.process_time() - started) / asked
    return Timed(name, micros, recall(np.array(found), np.array(truth)))


def _others(data: Data, rows: Rows, truth: list[Rows], batch: int) -> Iterator[Timed]:
    """Yield the other ways; those that only get dearer end once their recall is enough."""
    index, items = data.index.index, len(data.vectors)
    passing = RowMask(rowset(rows), items)
    selector = _faiss.IDSelectorBitmap(passing.bits)
    for probed in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, data.index.lists):
        parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=min(probed, data.index.lists))
        found = _timed(f"selector, {probed} lists", partial(_selected, index, parameters), data, truth, batch)
        yield found
        if found.recall >= RECALL or found.micros > 50_000:
            break
    member = np.zeros(items, np.bool_)
    member[rows] = True
    fetched = min(OVERFETCHED, items, int(1.5 * K * items / len(rows)) + 20)
    for probed in (32, 128):
        search = partial(_filtered, index, member, fetched, _faiss.SearchParametersIVF(nprobe=probed))
        yield _timed(f"{fetched} fetched, {probed} lists", search, data, truth, batch)
    if len(rows) <= 300_000:
        exact = ExactIndex(data.vectors)
        yield _timed("all compared", lambda part: exact.search_among(part, K, IndexRows(rows)).rows, data, truth, batch)


def _selected(index: Any, parameters: Any, part: F32) -> Rows:
    rows: Rows = index.search(part, K, params=parameters)[1]
    return rows


def _filtered(index: Any, member: npt.NDArray[np.bool_], fetched: int, parameters: Any, part: F32) -> Rows:
    """Fetch more than is wanted, and keep what passes."""
    found = index.search(part, fetched, params=parameters)[1]
    return _first((found >= 0) & member[found], found)


def _first(kept: npt.NDArray[np.bool_], found: Rows) -> Rows:
    """Return the first K of the rows that are kept, with -1 behind them."""
    order = np.argsort(~kept, axis=1, kind="stable")[:, :K]
    return np.where(np.take_along_axis(kept, order, 1), np.take_along_axis(found, order, 1), -1)


def _ours(data: Data, case: "_Case", truth: list[Rows], batch: int) -> Timed:
    """Time what the server does: what is seen differs from query to query, and is dropped if it is found."""
    search = FilteredSearch(data.index, ExactIndex(data.vectors), RowMask(rowset(case.rows), len(data.vectors)))

    def ask(part: F32) -> Rows:
        found = search.search(part, K, excluded=[IndexRows(case.seen)] * len(part)).rows
        if not len(case.seen):
            return found
        place = np.searchsorted(case.seen, found)
        return _first(case.seen.take(place, mode="clip") != found, found)

    return _timed("server", ask, data, truth, batch)


class _Case(NamedTuple):
    """A filter: the rows that pass it, and those of them that a user has seen, ascending."""

    name: str
    rows: Rows
    seen: Rows


def _compare(case: _Case, data: Data, batch: int, *, every: bool) -> None:
    """Print a filter's row: the server beside the cheapest of the others."""
    left = np.setdiff1d(case.rows, case.seen)
    if not len(left):
        return
    truth = _truth(data, left, min(K, len(left)))
    ours, others = _ours(data, case, truth, batch), list(_others(data, left, truth, batch))
    best = min((other for other in others if other.recall >= RECALL), key=lambda other: other.micros)
    if every:
        for other in others:
            row(case.name, len(left), "", "", "", other.name, other.micros, other.recall, "")
    ratio, once = ours.micros / best.micros, _prepared(data, case.rows)
    row(case.name, len(left), ours.micros, ours.recall, once, best.name, best.micros, best.recall, ratio)


def _prepared(data: Data, rows: Rows) -> float:
    """Return the microseconds to work out a filter of two tags and where its rows lie, once for all of its queries."""
    one, other = rowset(rows) | rowset(np.arange(0, len(data.vectors), 2)), rowset(rows)
    started = time.process_time()
    search = FilteredSearch(data.index, ExactIndex(data.vectors), RowMask(one & other, len(data.vectors)))
    search.search(data.queries[:1], K)
    first = time.process_time()
    search.search(data.queries[:1], K)
    return 1e6 * (2 * first - started - time.process_time())


def _cases(data: Data) -> Iterator[_Case]:
    none, items = np.empty(0, np.int64), len(data.vectors)
    for share in SHARES:
        yield _Case(f"random {share:g}", data.passing(share, together=False), none)
    for share in SHARES[1:]:
        yield _Case(f"clusters {share:g}", data.passing(share, together=True), none)
    rng = np.random.default_rng(0)
    seen = np.unique(rng.choice(items, min(items, SEEN)))
    allowed = np.unique(rng.choice(items, min(items, ALLOWED)))
    for share in SHARES[1:]:
        tag, genre = (data.passing(share**0.5, together=together) for together in (False, True))
        both = np.intersect1d(tag, genre)
        yield _Case(f"two tags {share:g}, seen", both, np.intersect1d(both, seen))
        listed = np.intersect1d(both, allowed)
        yield _Case(f"two tags {share:g}, seen, allowed", listed, np.intersect1d(listed, seen))


@app.command()
def run(items: int = 1_000_000, queries: int = 64, batch: int = 1, every: bool = False) -> None:
    """Compare for every filter."""
    faiss.omp_set_num_threads(1)
    data = Data.made(items, queries)
    print(f"{items:,} x {DIMENSION}, {data.index.lists} lists, k = {K}, {batch} queries at a time\n")
    head("filter", "rows", "server us", "recall", "once us", "cheapest other way", "us", "recall", "ratio")
    for case in _cases(data):
        _compare(case, data, batch, every=every)


if __name__ == "__main__":
    app()
