"""The vectors of a batch of queries, however each of them is given."""

import numpy as np
import numpy.typing as npt

from contracts import PADDING_KEY, IndexRows, ItemKeys
from serving.bundle import LoadedBundle
from serving.queries import ByEmbedding

__all__ = ["QueryVectors"]

Floats = npt.NDArray[np.float32]


class QueryVectors:
    """Collects query vectors, so that all histories of a batch make one tower run."""

    def __init__(self, bundle: LoadedBundle) -> None:
        self._bundle = bundle
        self._histories: list[ItemKeys] = []
        self._ready: list[tuple[int, Floats]] = []
        self._count = 0

    def history(self, keys: ItemKeys) -> tuple[int, IndexRows]:
        """Return the place of a history's vector (-1 without a known item), and the rows of its items."""
        real = keys[keys != PADDING_KEY]
        rows = self._bundle.rows_of(real)
        if not (rows >= 0).any():
            return -1, rows
        newest = real[rows >= 0][-self._bundle.manifest.history_length :]
        self._histories.append(ItemKeys(newest))
        self._count += 1
        return self._count - 1, rows

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
            vectors[~ready] = self._bundle.users(_padded(self._histories))
        return vectors


def _padded(histories: list[ItemKeys]) -> ItemKeys:
    padded = np.full((len(histories), max(map(len, histories))), PADDING_KEY, np.int64)
    for row, keys in zip(padded, histories, strict=True):
        row[len(row) - len(keys) :] = keys
    return ItemKeys(padded)
