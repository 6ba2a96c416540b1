"""Search of item vectors by inner product, exactly or with a FAISS index, on CPU or GPU.

On a GPU, an index is not safe for concurrent readers, and an index keeps its search parameters as state; so it belongs
to one thread (`weir.serving.batching.batcher`). Rows are index rows; a row of -1 means "nothing more found".
"""

import ctypes
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.faiss_index import is_graph, takes_deltas, widen_walks

__all__ = [
    "COMPARED_BY_MATRIX",
    "AnnIndex",
    "Device",
    "Exact",
    "ExactIndex",
    "Found",
    "GpuFullError",
    "Index",
    "LayeredIndex",
    "best",
    "exact_index",
    "gpu_bytes",
    "is_halved",
    "on_device",
    "pick_gpu",
    "room",
]

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Device = Literal["auto", "cpu", "gpu"]

_RUNTIMES: Final = ("libcudart.so.12", "libcudart.so.13")

_SHARE: Final = 0.9
"""Share of the free GPU memory that an index may take, as searches need memory and lists grow by blocks."""

_PER_VECTOR: Final = 8
"""Bytes of a row's id in its list."""

_GPU_LIMIT: Final = 2048
"""Largest k and nprobe that FAISS supports on a GPU."""

_COMPARED_BY_WALK: Final = 64
"""Vectors compared per microsecond by an index that scans them one by one."""

COMPARED_BY_MATRIX: Final = 512
"""Vectors compared per microsecond by a matrix product."""

_GRAPH_COST: Final = 300.0
"""Microseconds of a graph walk (HNSW32 over a million vectors), almost independent of the number of vectors."""

# FAISS uses a matrix product only above this threshold, which 1.15 raised so much that large batches are scanned
# instead: 3.7 times slower at 256 queries. With 300, one query is still scanned, eight use a matrix product.
faiss.cvar.distance_compute_blas_threshold = 300

_MARGIN: Final = 16
"""Rows that `LayeredIndex` fetches in addition to the expected number of outdated ones."""


class GpuFullError(RuntimeError):
    """An index does not fit into the free memory of the GPU; the message names both sizes."""


def room() -> int | None:
    """Return how many bytes an index may take on the first GPU now; None if CUDA cannot tell."""
    for name in _RUNTIMES:
        with suppress(OSError, AttributeError):
            # The runtime that FAISS has loaded: another one would have a CUDA context of its own.
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            if not runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
                return int(_SHARE * free.value)
    return None


def gpu_bytes(index: Any, *, half: bool = False) -> int:
    """Estimate the GPU memory of a FAISS index in bytes; `half`: uncompressed vectors have 16 bits instead of 32."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        return int(inverted.ntotal * (inverted.code_size + _PER_VECTOR) + 4 * inverted.nlist * inverted.d)
    return int(index.ntotal * index.d * (2 if half else 4))


def is_halved(index: Any, free: int | None) -> bool:
    """Return whether an index fits into `free` bytes only with 16-bit vectors; False if `free` is None (unknown).

    Raises
    ------
    GpuFullError
        If it does not fit with 16 bits either.
    """
    if free is None or gpu_bytes(index) <= free:
        return False
    least = gpu_bytes(index, half=True)
    if least <= free:
        return True
    raise GpuFullError(
        f"it takes {least / 2**20:,.0f} MiB at least, and {free / 2**20:,.0f} may be used on the GPU now"
    )


class Found(NamedTuple):
    """The result of a search: scores (queries, k), descending, and their rows (queries, k); -1: no more rows."""

    scores: Floats
    rows: IndexRows


class Index(Protocol):
    """Searches the vectors of one bundle."""

    @property
    def lists(self) -> int:
        """Number of inverted lists; a search visits `nprobe` of them; 0: the index has no lists."""

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` rows for each of `queries` (n, dimension); `nprobe` 0: the default number of lists."""

    def reaches(self, k: int, nprobe: int = 0) -> bool:
        """Return whether a search for `k` rows in `nprobe` lists is within the limits of its device."""

    def cost(self, nprobe: int = 0) -> float:
        """Estimate a query's search in microseconds of one core (see `weir.serving.search.cost`)."""


class Exact(Index, Protocol):
    """An index that compares each query with every vector."""

    @property
    def vectors(self) -> Any:
        """The vectors by row: an array, or `weir.contracts.base.arrays.Layers`."""

    def search_among(self, queries: Floats, k: int, rows: IndexRows) -> Found:
        """Return the best `k` of the given distinct `rows` for each query."""


@dataclass(frozen=True)
class ExactIndex:
    """An index that compares each query with every one of `vectors`, (rows, dimension)."""

    vectors: Floats

    @property
    def lists(self) -> int:
        """0, as there are no lists."""
        return 0

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:  # noqa: ARG002 - no lists to choose from
        """Return the best `k` rows for each query."""
        scores, rows = faiss.knn(queries, self.vectors, min(k, len(self.vectors)), metric=faiss.METRIC_INNER_PRODUCT)
        return Found(scores, IndexRows(rows))

    def reaches(self, k: int, nprobe: int = 0) -> bool:  # noqa: ARG002 - it has no limits
        """Return True, as any number of rows can be ranked."""
        return True

    def cost(self, nprobe: int = 0) -> float:  # noqa: ARG002 - no lists to choose from
        """Estimate a query's search in microseconds of one core."""
        return len(self.vectors) / COMPARED_BY_MATRIX

    def search_among(self, queries: Floats, k: int, rows: IndexRows) -> Found:
        """Return the best `k` of the given distinct `rows` for each query."""
        places = ExactIndex(np.ascontiguousarray(self.vectors[rows])).search(queries, k)
        return Found(places.scores, IndexRows(rows[places.rows]))


@dataclass
class AnnIndex:
    """A FAISS index with its default search `parameters`.

    `space` is the FAISS parameter space of the index's device; `limit` is the device's largest k and nprobe (None: no
    limit). `lists` counts the inverted lists, 0 without lists; `graph`: the index is a graph (HNSW). `keep` keeps GPU
    resources alive. `assigned` is the inverted list of each row, None if searches cannot choose lists
    (`weir.serving.index.probing`).
    """

    index: Any
    parameters: Mapping[str, int | float]
    space: Any
    limit: int | None = None
    lists: int = 0
    graph: bool = False
    keep: Any = None
    assigned: Layers[np.int32] | None = None
    _nprobe: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            self.space.set_index_parameter(self.index, name, value)
        self._nprobe = int(self.parameters.get("nprobe", 0))

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` rows found for each of `queries` (n, dimension).

        Raises `ValueError` for a search beyond the limits of the device.
        """
        if not self.reaches(k, nprobe):
            raise ValueError(f"k = {k} or nprobe = {nprobe} is above {self.limit}, the limit of this index's device")
        self._visit(self._lists_visited(nprobe))
        if self.graph:
            widen_walks(self.index, k, int(self.parameters.get("efSearch", 0)))
        return Found(*self.index.search(queries, min(k, self.index.ntotal)))

    def reaches(self, k: int, nprobe: int = 0) -> bool:
        """Return whether a search for `k` rows in `nprobe` lists is within the limits of its device."""
        if self.limit is None:
            return True
        return min(k, self.index.ntotal) <= self.limit and self._lists_visited(nprobe) <= self.limit

    def cost(self, nprobe: int = 0) -> float:
        """Estimate a query's search in microseconds of one core."""
        if self.graph:
            return _GRAPH_COST
        share = self._lists_visited(nprobe) / self.lists if self.lists else 1.0
        return float(share * self.index.ntotal / _COMPARED_BY_WALK)

    @property
    def chooses_lists(self) -> bool:
        """Whether a search can be restricted to chosen lists and rows."""
        return self.assigned is not None

    @property
    def visited(self) -> int:
        """Number of lists that a search visits if `nprobe` is 0."""
        return self._lists_visited(0)

    def lists_of(self, rows: IndexRows) -> npt.NDArray[np.int32]:
        """Return the number of the list that holds each of `rows`; raises `ValueError` unless `chooses_lists`."""
        found: npt.NDArray[np.int32] = self._assigned[rows]
        return found

    @cached_property
    def centroids(self) -> Floats:
        """Centroid of each list, (lists, dimension); only if `chooses_lists`."""
        vectors: Floats = self.index.quantizer.reconstruct_n(0, self.lists)
        return vectors

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of rows in each list, (lists,); only if `chooses_lists`."""
        return np.array([self.index.invlists.list_size(number) for number in range(self.lists)], np.int64)

    @property
    def _assigned(self) -> Layers[np.int32]:
        if self.assigned is None:
            raise ValueError("the lists of this index cannot be chosen")
        return self.assigned

    def _lists_visited(self, nprobe: int) -> int:
        return min(nprobe or int(self.parameters.get("nprobe", 0)), self.lists)

    def _visit(self, nprobe: int) -> None:
        if nprobe != self._nprobe and "nprobe" in self.parameters:
            self.space.set_index_parameter(self.index, "nprobe", nprobe)
            self._nprobe = nprobe


def best(parts: Iterable[Found], k: int) -> Found:
    """Merge the results of searches of disjoint rows, for the same queries, into the best `k` rows of each query."""
    scores, rows = (np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Found(np.take_along_axis(scores, order, 1), IndexRows(np.take_along_axis(rows, order, 1)))


def pick_gpu(device: Device) -> bool:
    """Return whether to search on a GPU; raises `ValueError` if `device` is ``gpu`` and there is none."""
    gpus = int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0
    if device == "gpu" and not gpus:
        raise ValueError("device = 'gpu', but FAISS finds none: install the extra [gpu], or set device to 'auto'")
    return bool(gpus) and device != "cpu"


def on_device(index: Any, parameters: Mapping[str, int | float], device: Device) -> AnnIndex:
    """Put a FAISS index on a device and set its search parameters; raises `RuntimeError` for unusable parameters.

    On a GPU, vectors have 16 bits if there is no room for 32. If 16 bits do not fit either, the CPU searches, or, with
    `device` = gpu, `GpuFullError` is raised.
    """
    inverted = faiss.try_extract_index_ivf(index)
    lists = 0 if inverted is None else int(inverted.nlist)
    if lists:
        parameters = {"nprobe": 1, **parameters}
    if pick_gpu(device):
        try:
            resources, options = faiss.StandardGpuResources(), faiss.GpuClonerOptions()
            options.useFloat16 = is_halved(index, room())
            on_gpu = faiss.index_cpu_to_gpu(resources, 0, index, options)
            return AnnIndex(on_gpu, parameters, faiss.GpuParameterSpace(), _GPU_LIMIT, lists, keep=resources)
        except RuntimeError as error:
            if device == "gpu":
                raise
            log.warning("this index cannot be searched on a GPU, the CPU does it: %s", error)
    space, graph = faiss.ParameterSpace(), is_graph(index)
    return AnnIndex(index, parameters, space, lists=lists, graph=graph, assigned=_assigned(index))


def _assigned(index: Any) -> Layers[np.int32] | None:
    """Return the number of the list that holds each row; None if searches cannot choose single lists."""
    inner = faiss.downcast_index(index)
    if not isinstance(inner, faiss.IndexIVF) or not takes_deltas(inner):
        return None
    lists: Any = inner.invlists
    held = [
        faiss.rev_swig_ptr(lists.get_ids(at), lists.list_size(at)) for at in range(inner.nlist) if lists.list_size(at)
    ]
    rows = np.concatenate(held) if held else np.empty(0, np.int64)
    numbers = np.full(int(rows.max(initial=-1)) + 1, -1, np.int32)
    sizes = [lists.list_size(at) for at in range(inner.nlist)]
    numbers[rows] = np.repeat(np.arange(inner.nlist, dtype=np.int32), sizes)
    return Layers.of(numbers)


def exact_index(vectors: Layers[np.float32]) -> Exact:
    """Return exact search of a bundle's vectors."""
    changed = len(vectors.over) or len(vectors.gone)
    return LayeredIndex(vectors) if changed else ExactIndex(vectors.base)


@dataclass(frozen=True)
class LayeredIndex:
    """Exact search of a complete bundle (base) and of the vectors that deltas changed; the two results are merged.

    The base still holds outdated vectors: a search fetches more than k rows of the base, and doubles their number while
    fewer than k are current. The result equals that of a search over one array of the current vectors, up to ties.
    """

    vectors: Layers[np.float32]

    @cached_property
    def _late(self) -> ExactIndex:
        return ExactIndex(self.vectors.over.values)

    @property
    def lists(self) -> int:
        """0, as there are no lists."""
        return 0

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:  # noqa: ARG002 - no lists to choose from
        """Return the best `k` rows for each query."""
        base, late = self._search_base(queries, k), self._late.search(queries, k)
        scores = np.concatenate([base.scores, late.scores], axis=1)
        rows = np.concatenate([base.rows, self.vectors.over.keys[late.rows]], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : min(k, self.vectors.left + len(self.vectors.over))]
        return Found(np.take_along_axis(scores, best, 1), IndexRows(np.take_along_axis(rows, best, 1)))

    def _search_base(self, queries: Floats, k: int) -> Found:
        """Return the best `k` current rows of the base for each query, padded with row -1 (score minus infinity)."""
        base, count, left = ExactIndex(self.vectors.base), len(self.vectors.base), self.vectors.left
        wanted = min(k, left)
        fetched = min(int(wanted * count / max(left, 1)) + _MARGIN, count)
        while True:
            found = base.search(queries, fetched)
            current = self.vectors.in_base(found.rows)
            if fetched == count or (current.sum(axis=1) >= wanted).all():
                break
            fetched = min(2 * fetched, count)
        scores = np.where(current, found.scores, -np.inf).astype(np.float32)
        order = np.argsort(~current, axis=1, kind="stable")[:, :wanted]
        rows = np.where(current, found.rows, -1)
        return Found(np.take_along_axis(scores, order, 1), IndexRows(np.take_along_axis(rows, order, 1)))

    def reaches(self, k: int, nprobe: int = 0) -> bool:  # noqa: ARG002 - it has no limits
        """Return True, as any number of rows can be ranked."""
        return True

    def cost(self, nprobe: int = 0) -> float:  # noqa: ARG002 - no lists to choose from
        """Estimate a query's search in microseconds of one core."""
        return ExactIndex(self.vectors.base).cost() + self._late.cost()

    def search_among(self, queries: Floats, k: int, rows: IndexRows) -> Found:
        """Return the best `k` of the given distinct `rows` for each query."""
        places = ExactIndex(np.ascontiguousarray(self.vectors[rows])).search(queries, k)
        return Found(places.scores, IndexRows(rows[places.rows]))
