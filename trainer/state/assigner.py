"""The nearest of many centroids for each vector: ranks divide the vectors.

Those of one machine read them from a mapped file. Several machines need not have a disk in common: there a rank gets
the vectors that it is to look at from the ranks that keep them.
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
from weir.contracts.drafts import ArrayDraft, mapped
from weir.trainer.items.rows import TableRows
from weir.trainer.ranks.packed import packed, unpacked
from weir.trainer.ranks.parts import done_by_all
from weir.trainer.ranks.workers import Workers

__all__ = ["Assigned", "Assigner", "assign", "lengths_of"]

# FAISS multiplies matrices only for batches above this threshold, which 1.15 set so high that items are compared with
# the centroids one by one (see `weir.serving.index`).
faiss.cvar.distance_compute_blas_threshold = 300

_ASSIGN: Final = "assign "
"""What rank 0 asks the others for, with the paths of the arrays."""

_ASSIGN_ROWS: Final = "assign rows of "
"""The same, with the numbers of rows and of centroids, which it sends."""

_BLOCK: Final = 1 << 16
"""Vectors assigned at once: their scores against a few thousand centroids stay within a gigabyte."""

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Assigned(NamedTuple):
    """The list of each item, (n,), and the cosine of the item and the list's centroid, (n,)."""

    lists: npt.NDArray[np.int32]
    cosines: Floats

    def take(self, chosen: Ints) -> "Assigned":
        """Return those of the `chosen` items (m,)."""
        return Assigned(self.lists[chosen], self.cosines[chosen])


class _Sizes(NamedTuple):
    """How many `rows` are to be assigned, to how many `lists`, and the `dimension` of vectors."""

    rows: int
    lists: int
    dimension: int


class _Paths(NamedTuple):
    """NumPy files of the `vectors` (n, d), the `chosen` ones (m,), the `centroids` (c, d), and of what is found."""

    vectors: str
    chosen: str
    centroids: str
    lists: str
    cosines: str


@dataclass(frozen=True)
class Assigner:
    """Assigns vectors as `assign` does, bit for bit, with all ranks.

    Parameters
    ----------
    workers
        The ranks.
    vectors_of
        Returns the vectors (n, d) of distinct table rows (n,), others on each rank; all ranks call it together
        (`ItemVectors.searched`).
    """

    workers: Workers
    vectors_of: Callable[[Tensor], Tensor]

    def assign(self, vectors: Path, chosen: Ints, centroids: Floats) -> Assigned:
        """Return what `assign` does of an array in a file; called as `Embeddings.fetch`.

        Parameters
        ----------
        vectors
            A NumPy file, (n, d), on a disk that all ranks have.
        chosen
            Which of the vectors, (m,).
        centroids
            Of length 1, (c, d).
        """
        given = [_shared(array) for array in (chosen, centroids)]
        found = [_shared(np.zeros(len(chosen), kind)) for kind in (np.int32, np.float32)]
        paths = _Paths(str(vectors), *(str(draft.path) for draft in (*given, *found)))
        self.workers.ask(f"{_ASSIGN}{json.dumps(paths)}")
        self._assign_own(paths)
        lists, cosines = (draft.mapped() for draft in found)
        return Assigned(lists, cosines)

    def assign_rows(self, rows: TableRows, centroids: Floats) -> Assigned:
        """Return what `assign` does of the vectors of distinct rows (m,), at least one; called as `Embeddings.fetch`.

        Ranks need no disk in common. `centroids` (c, d) are of length 1.
        """
        sizes = _Sizes(len(rows), *centroids.shape)
        self.workers.ask(f"{_ASSIGN_ROWS}{json.dumps(sizes)}")
        return self._assign_together(sizes, torch.from_numpy(rows), torch.from_numpy(centroids))

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        if question.startswith(_ASSIGN_ROWS):
            sizes = _Sizes(*json.loads(question.removeprefix(_ASSIGN_ROWS)))
            self._assign_together(sizes, torch.empty(0, dtype=torch.int64), torch.empty(0, sizes.dimension))
        elif question.startswith(_ASSIGN):
            self._assign_own(_Paths(*json.loads(question.removeprefix(_ASSIGN))))
        else:
            return False
        return True

    def _assign_own(self, paths: _Paths) -> None:
        """Assign this rank's blocks; called as `done_by_all`."""
        done_by_all(self.workers, partial(self._assign_part, paths), len(mapped(Path(paths.chosen))))

    def _assign_part(self, paths: _Paths) -> int:
        """Assign this rank's blocks, and return how many vectors they have."""
        vectors, chosen, centroids = (mapped(Path(path)) for path in (paths.vectors, paths.chosen, paths.centroids))
        lists, cosines = (mapped(Path(path), "r+") for path in (paths.lists, paths.cosines))
        quantizer = _quantizer(centroids)
        own = _blocks(len(chosen))[self.workers.rank :: self.workers.world_size]
        for at in own:
            lists[at], cosines[at] = _nearest(quantizer, vectors[chosen[at]])
        return sum(at.stop - at.start for at in own)

    @torch.no_grad()
    def _assign_together(self, sizes: _Sizes, rows: Tensor, centroids: Tensor) -> Assigned:
        """Assign rows (m,) to centroids (c, d); rank 0 gives both, and gets what all have found."""
        ranks, found = self.workers.world_size, list[Tensor]()
        quantizer = _quantizer(self.workers.spread(centroids, [sizes.lists, *[0] * (ranks - 1)])[0].numpy())
        for first in range(0, sizes.rows, ranks * _BLOCK):
            some = rows[first : first + ranks * _BLOCK]
            own = self.workers.deliver(some, np.arange(len(some)) // _BLOCK)
            nearest = packed(tuple(map(torch.from_numpy, _nearest(quantizer, self.vectors_of(own).numpy()))))
            found.append(self.workers.deliver(nearest, np.zeros(len(nearest), np.int64)))
        lists, cosines = unpacked(torch.cat(found), (torch.empty(0, dtype=torch.int64), torch.empty(0)))
        return Assigned(lists.int().numpy(), cosines.numpy())


def assign(quantizer: Any, vectors: Floats, chosen: Ints | None = None) -> Assigned:
    """Return the nearest list of each of the vectors (n, d), or of `chosen` ones (m,), block by block."""
    count = len(vectors) if chosen is None else len(chosen)
    lists, cosines = np.empty(count, np.int32), np.empty(count, np.float32)
    for at in _blocks(count):
        lists[at], cosines[at] = _nearest(quantizer, vectors[at] if chosen is None else vectors[chosen[at]])
    return Assigned(lists, cosines)


def lengths_of(vectors: Floats) -> Floats:
    """Return the lengths of vectors (n, d), above 0."""
    lengths: Floats = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float32).tiny)
    return lengths


def _quantizer(centroids: Floats) -> Any:
    quantizer: Any = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    return quantizer


def _nearest(quantizer: Any, vectors: Floats) -> tuple[Ints, Floats]:
    scores, found = quantizer.search(vectors, 1)
    return found[:, 0], scores[:, 0] / lengths_of(vectors)


def _shared(array: npt.NDArray[Any]) -> ArrayDraft:
    """Return an array as a file for other processes, which goes with what is returned."""
    draft = ArrayDraft(Store(tempfile.gettempdir()), "array.npy", array.shape, array.dtype)
    mapped(draft.path, "r+")[:] = array
    return draft


def _blocks(count: int) -> list[slice]:
    return [slice(first, min(first + _BLOCK, count)) for first in range(0, count, _BLOCK)]
