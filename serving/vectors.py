"""The vectors of a batch of queries, however each of them is given."""

import numpy as np
import numpy.typing as npt

from weir.contracts import IndexRows
from weir.serving.bundle import LoadedBundle
from weir.serving.queries import ByEmbedding

__all__ = ["QueryVectors"]

Floats = npt.NDArray[np.float32]


class QueryVectors:
    """Collects query vectors, so that all histories of a batch make one tower run."""

    def __init__(self, bundle: LoadedBundle) -> None:
        self._bundle = bundle
        self._histories: list[IndexRows] = []
        self._said: list[Floats | None] = []
        self._ready: list[tuple[int, Floats]] = []
        self._count = 0

    def history(self, rows: IndexRows, said: Floats | None = None) -> int:
        """Return the place of a user's vector, by the rows of its history and what its features have `said`, (d,).

        -1 where no item is known, and nothing is said.
        """
        known = rows[rows >= 0]
        if not len(known) and said is None:
            return -1
        self._said.append(said)
        self._histories.append(IndexRows(known[-self._bundle.manifest.newest :]))
        self._count += 1
        return self._count - 1

    def item(self, row: int) -> int:
        """Return the place of an item's vector."""
        return self._take(self._bundle.exact.vectors[row])

    def given(self, source: ByEmbedding) -> int:
        """Return the place of a vector that came with the query."""
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
        """Return what the features of all users say, (histories, dimension); None where that is nothing."""
        if all(said is None for said in self._said):
            return None
        nothing = np.zeros(self._bundle.manifest.dimension, np.float32)
        return np.stack([nothing if said is None else said for said in self._said])
