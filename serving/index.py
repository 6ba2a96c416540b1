"""What is searched: item vectors by inner product, exactly or with a FAISS index, on CPU or GPU.

Indexes are not safe for concurrent readers on a GPU and keep their search parameters as state, so a backend
belongs to one thread (see `serving.batcher`). Rows are index rows; a row of -1 means "nothing more found".
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

import faiss
import numpy as np
import numpy.typing as npt

__all__ = ["AnnIndex", "Device", "ExactIndex", "Found", "Index", "open_index", "pick_gpu"]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Device = Literal["auto", "cpu", "gpu"]

_GPU_MAX_K: Final = 2048

# FAISS multiplies matrices only for batches above this threshold, which 1.15 set so high that large batches are
# compared one by one: 3.7 times slower at 256 queries. At 300 one query is still scanned, eight are multiplied.
faiss.cvar.distance_compute_blas_threshold = 300

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Scores (queries, k), descending, and the rows they belong to, (queries, k); both padded with row -1."""

    scores: Floats
    rows: Rows


class Index(Protocol):
    """Searches the vectors of one bundle."""

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` rows for each of `queries` (n, dimension); `nprobe` 0 means the default."""


@dataclass(frozen=True)
class ExactIndex:
    """Compares with every vector; `vectors` is (items, dimension)."""

    vectors: Floats

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:  # noqa: ARG002 - no lists to choose from
        """Return the best `k` rows for each query."""
        return Found(*faiss.knn(queries, self.vectors, min(k, len(self.vectors)), metric=faiss.METRIC_INNER_PRODUCT))

    def search_among(self, queries: Floats, k: int, rows: Rows) -> Found:
        """Return the best `k` of the given distinct `rows` for each query."""
        places = ExactIndex(np.ascontiguousarray(self.vectors[rows])).search(queries, k)
        return Found(places.scores, rows[places.rows])


@dataclass
class AnnIndex:
    """A FAISS index with its default search parameters.

    `space` is the FAISS parameter space of the device that `index` lives on; `keep` holds GPU resources alive.
    """

    index: Any
    parameters: Mapping[str, int | float]
    space: Any
    max_k: int
    keep: Any = None
    _nprobe: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            self.space.set_index_parameter(self.index, name, value)
        self._nprobe = int(self.parameters.get("nprobe", 0))

    @property
    def by_inner_product(self) -> bool:
        """Whether its scores are inner products."""
        return bool(self.index.metric_type == faiss.METRIC_INNER_PRODUCT)

    def search(self, queries: Floats, k: int, nprobe: int = 0) -> Found:
        """Return the best `k` rows found for each query."""
        self._visit(nprobe or int(self.parameters.get("nprobe", 0)))
        return Found(*self.index.search(queries, min(k, self.index.ntotal, self.max_k)))

    def _visit(self, nprobe: int) -> None:
        if nprobe != self._nprobe and "nprobe" in self.parameters:
            self.space.set_index_parameter(self.index, "nprobe", nprobe)
            self._nprobe = nprobe


def pick_gpu(device: Device) -> bool:
    """Say whether to search on a GPU; raises `ValueError` where one is demanded and there is none."""
    gpus = int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0
    if device == "gpu" and not gpus:
        raise ValueError("device = 'gpu', but FAISS finds none: install the extra [gpu], or set device to 'auto'")
    return bool(gpus) and device != "cpu"


def open_index(data: bytes, parameters: Mapping[str, int | float], device: Device) -> AnnIndex:
    """Read a serialised FAISS index; raises `RuntimeError` (from FAISS) for bytes or parameters it cannot use."""
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    if faiss.try_extract_index_ivf(index) is not None:
        parameters = {"nprobe": 1, **parameters}
    if pick_gpu(device):
        try:
            resources = faiss.StandardGpuResources()
            on_gpu = faiss.index_cpu_to_gpu(resources, 0, index)
            return AnnIndex(on_gpu, parameters, faiss.GpuParameterSpace(), _GPU_MAX_K, keep=resources)
        except RuntimeError as error:
            if device == "gpu":
                raise
            log.warning("this index cannot be searched on a GPU, the CPU does it: %s", error)
    return AnnIndex(index, parameters, faiss.ParameterSpace(), max(1, int(index.ntotal)))
