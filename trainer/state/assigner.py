"""Assignment of vectors to their nearest centroids, split over all ranks.

Ranks of one machine read the vectors from a memory-mapped file. With several machines, which may have no common disk,
each rank gets its part of the vectors from the ranks that own them.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import Store
from weir.contracts.storage.array_files import ArrayDraft, mapped
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.coordination import done_by_all
from weir.trainer.ranks.shared_memory import packed, unpacked
from weir.trainer.ranks.workers import Workers

__all__ = ["Assigned", "Assigner", "assign", "lengths_of"]

# FAISS uses matrix products only for batches above this threshold, which 1.15 set so high that it would compare items
# with the centroids one by one (see `weir.serving.index.index`).
faiss.cvar.distance_compute_blas_threshold = 300

_ASSIGN: Final = "assign "
"""Prefix of rank 0's query for `assign`; the paths of the arrays follow."""

_ASSIGN_ROWS: Final = "assign rows of "
"""Prefix of rank 0's query for `assign_rows`; the numbers of rows and centroids follow, then the arrays are sent."""

_BLOCK: Final = 1 << 16
"""Vectors assigned at once: their scores against a few thousand centroids fit into a gigabyte."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Assigned(NamedTuple):
    """For each item, the number of its list, (n,), and the cosine of the item and the list's centroid, (n,)."""

    lists: npt.NDArray[np.int32]
    cosines: Floats

    def take(self, chosen: Ints) -> "Assigned":
        """Return the assignments of the `chosen` items (m,)."""
        return Assigned(self.lists[chosen], self.cosines[chosen])


class _Sizes(NamedTuple):
    """Number of `rows` to assign, number of `lists`, and `dimension` of the vectors."""

    rows: int
    lists: int
    dimension: int


class _Paths(NamedTuple):
    """Paths of NumPy files: `vectors` (n, d), `chosen` indices (m,), `centroids` (c, d), and the results (m,)."""

    vectors: str
    chosen: str
    centroids: str
    lists: str
    cosines: str


@dataclass(frozen=True)
class Assigner:
    """Assigns vectors to lists with all ranks; the results have the same bits as from the function `assign`.

    Parameters
    ----------
    workers
        The ranks.
    vectors_of
        Collective function that returns the vectors (n, d) of distinct table rows (n,), different rows on each rank
        (`ItemVectors.searched`).
    """

    workers: Workers
    vectors_of: Callable[[Tensor], Tensor]

    def assign(self, vectors: Path, chosen: Ints, centroids: Floats) -> Assigned:
        """Assign vectors of a file to their nearest centroids. Collective, or called by rank 0 in `Workers.first`.

        Parameters
        ----------
        vectors
            NumPy file, (n, d), on a disk shared by all ranks.
        chosen
            Indices of the vectors to assign, (m,).
        centroids
            Unit vectors, (c, d).
        """
        given = [_shared(array) for array in (chosen, centroids)]
        results = [_shared(np.zeros(len(chosen), kind)) for kind in (np.int32, np.float32)]
        paths = _Paths(str(vectors), *(str(draft.path) for draft in (*given, *results)))
        self.workers.ask(f"{_ASSIGN}{json.dumps(paths)}")
        self._assign_own(paths)
        lists, cosines = (draft.mapped() for draft in results)
        return Assigned(lists, cosines)

    def assign_rows(self, rows: TableRows, centroids: Floats) -> Assigned:
        """Assign the items of distinct rows (m,), m >= 1. Collective, or called by rank 0 in `Workers.first`.

        Needs no common disk of the ranks. `centroids` (c, d) are unit vectors.
        """
        sizes = _Sizes(len(rows), *centroids.shape)
        self.workers.ask(f"{_ASSIGN_ROWS}{json.dumps(sizes)}")
        return self._assign_together(sizes, torch.from_numpy(rows), torch.from_numpy(centroids))

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        if question.startswith(_ASSIGN_ROWS):
            sizes = _Sizes(*json.loads(question.removeprefix(_ASSIGN_ROWS)))
            self._assign_together(sizes, torch.empty(0, dtype=torch.int64), torch.empty(0, sizes.dimension))
        elif question.startswith(_ASSIGN):
            self._assign_own(_Paths(*json.loads(question.removeprefix(_ASSIGN))))
        else:
            return False
        return True

    def _assign_own(self, paths: _Paths) -> None:
        """Assign this rank's blocks of vectors in files; collective (`done_by_all`)."""
        done_by_all(self.workers, partial(self._assign_part, paths), len(mapped(Path(paths.chosen))))

    def _assign_part(self, paths: _Paths) -> int:
        """Assign this rank's blocks, and return the number of vectors in them."""
        vectors, chosen, centroids = (mapped(Path(path)) for path in (paths.vectors, paths.chosen, paths.centroids))
        lists, cosines = (mapped(Path(path), "r+") for path in (paths.lists, paths.cosines))
        quantizer = _quantizer(centroids)
        own = _blocks(len(chosen))[self.workers.rank :: self.workers.world_size]
        for at in own:
            lists[at], cosines[at] = _nearest(quantizer, vectors[chosen[at]])
        return sum(at.stop - at.start for at in own)

    @torch.no_grad()
    def _assign_together(self, sizes: _Sizes, rows: Tensor, centroids: Tensor) -> Assigned:
        """Assign rows (m,) to centroids (c, d) together; rank 0 passes both and receives all results."""
        ranks, results = self.workers.world_size, list[Tensor]()
        quantizer = _quantizer(self.workers.spread(centroids, [sizes.lists, *[0] * (ranks - 1)])[0].numpy())
        for first in range(0, sizes.rows, ranks * _BLOCK):
            some = rows[first : first + ranks * _BLOCK]
            own = self.workers.deliver(some, np.arange(len(some)) // _BLOCK)
            nearest = packed(tuple(map(torch.from_numpy, _nearest(quantizer, self.vectors_of(own).numpy()))))
            results.append(self.workers.deliver(nearest, np.zeros(len(nearest), np.int64)))
        lists, cosines = unpacked(torch.cat(results), (torch.empty(0, dtype=torch.int64), torch.empty(0)))
        return Assigned(lists.int().numpy(), cosines.numpy())


def assign(quantizer: Any, vectors: Floats, chosen: Ints | None = None) -> Assigned:
    """Return the nearest list of each vector (n, d), or only of the vectors at the indices `chosen` (m,).

    `quantizer` is a FAISS index of the lists' centroids.
    """
    count = len(vectors) if chosen is None else len(chosen)
    lists, cosines = np.empty(count, np.int32), np.empty(count, np.float32)
    for at in _blocks(count):
        lists[at], cosines[at] = _nearest(quantizer, vectors[at] if chosen is None else vectors[chosen[at]])
    return Assigned(lists, cosines)


def lengths_of(vectors: Floats) -> Floats:
    """Return the lengths of vectors (n, d), clamped above 0."""
    lengths: Floats = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float32).tiny)
    return lengths


def _quantizer(centroids: Floats) -> Any:
    """Return a flat FAISS index of centroids (c, d)."""
    quantizer: Any = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    return quantizer


def _nearest(quantizer: Any, vectors: Floats) -> tuple[Ints, Floats]:
    """Return the nearest list of each vector (n, d), and the cosine with its centroid."""
    scores, lists = quantizer.search(vectors, 1)
    return lists[:, 0], scores[:, 0] / lengths_of(vectors)


def _shared(array: npt.NDArray[Any]) -> ArrayDraft:
    """Return an array as a temporary file for other processes, which is deleted with the returned object."""
    draft = ArrayDraft(Store(tempfile.gettempdir()), "array.npy", array.shape, array.dtype)
    mapped(draft.path, "r+")[:] = array
    return draft


def _blocks(count: int) -> list[slice]:
    """Return slices that cut `count` vectors into blocks."""
    return [slice(first, min(first + _BLOCK, count)) for first in range(0, count, _BLOCK)]
