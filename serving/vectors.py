"""Compute the query vectors of a batch: from histories, items and given embeddings."""

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.serving.bundle import LoadedBundle
from weir.serving.queries import ByEmbedding

__all__ = ["QueryVectors"]

Floats = npt.NDArray[np.float32]


class QueryVectors:
    """Collects queries and computes their vectors, with one tower run for all histories of a batch."""

    def __init__(self, bundle: LoadedBundle) -> None:
        self._bundle = bundle
        self._histories: list[IndexRows] = []
        self._said: list[Floats | None] = []
        self._ready: list[tuple[int, Floats]] = []
        self._count = 0

    def history(self, rows: IndexRows, said: Floats | None = None) -> int:
        """Add a user, by the rows of its history and its feature vector `said`, (d,); return its place.

        -1 if no item of the history is known and there is no feature vector.
        """
        known = rows[rows >= 0]
        if not len(known) and said is None:
            return -1
        self._said.append(said)
        self._histories.append(IndexRows(known[-self._bundle.manifest.newest :]))
        self._count += 1
        return self._count - 1

    def item(self, row: int) -> int:
        """Add an item's vector; return its place."""
        return self._take(self._bundle.exact.vectors[row])

    def given(self, source: ByEmbedding) -> int:
        """Add a vector given in the query; return its place."""
        return self._take(self._bundle.normalised(source.values[None])[0])

    def _take(self, vector: Floats) -> int:
        self._ready.append((self._count, vector))
        self._count += 1
        return self._count - 1

    def made(self) -> Floats:
        """Return all vectors, (count, dimension), by place."""
        vectors = np.empty((self._count, self._bundle.manifest.dimension), np.float32)
        ready = np.zeros(self._count, np.bool_)
        for place, vector in self._ready:
            vectors[place], ready[place] = vector, True
        if self._histories:
            vectors[~ready] = self._bundle.users_at(self._histories, self._all_said())
        return vectors

    def _all_said(self) -> Floats | None:
        """Return the feature vectors of all users, (histories, dimension); None if no user has one."""
        if all(said is None for said in self._said):
            return None
        nothing = np.zeros(self._bundle.manifest.dimension, np.float32)
        return np.stack([nothing if said is None else said for said in self._said])
