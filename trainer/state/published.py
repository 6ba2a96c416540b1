"""Which items are no longer what the newest bundle says, where all may move: each rank compares those that it keeps.

With item features, each step moves every item a little, and so does each window that says a number of any item: what
was touched does not tell which have moved. So each rank keeps the vectors of its rows as they were published, on disk.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts.ascending import ascending
from weir.contracts.scratch import zeros_in_scratch
from weir.trainer.config import TrainerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.places import Places
from weir.trainer.items.route import Route
from weir.trainer.items.rows import TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.state.touched import at_first
from weir.trainer.towers import project

__all__ = ["PublishedItems", "Vectors", "are_apart"]

_MOVED: Final = "moved"
_TAKE: Final = "take"
_AT_ONCE: Final = 1 << 14
"""Rows compared at a time: they stay in the processor's cache."""

Floats = npt.NDArray[np.float32]
Vectors = Callable[[Tensor], Tensor]
"""Gives the vectors (n, d) of rows (n,) that this rank keeps, as they are now."""


class PublishedItems:
    """The vectors of items as they are published, each with the rank that keeps its row.

    Where nothing else is said, a method is called as `Embeddings.fetch`.

    Parameters
    ----------
    table, embeddings
        Items and where their rows are.
    config
        Says how far a vector may be off (`publish_bound`), and how vectors are compared.
    """

    def __init__(self, table: ItemTable, embeddings: Embeddings, config: TrainerConfig) -> None:
        self.table, self.embeddings, self._config = table, embeddings, config
        self._places: Places | None = None
        self._vectors: Floats = np.empty((0, 0), np.float32)

    @property
    def is_known(self) -> bool:
        """Whether vectors were taken since the table has its size; each rank can say it alone."""
        return self._places == self.embeddings.places

    def take(self, rows: TableRows, vectors: Floats) -> None:
        """Take over the published vectors (n, d) of distinct rows (n,)."""
        self.embeddings.workers.ask(_TAKE)
        self._take(rows, vectors)

    def moved(self, now: Vectors) -> TableRows:
        """Return the rows of items that are off by more than the bound, on any rank, ascending, (n,); for rank 0."""
        self.embeddings.workers.ask(_MOVED)
        return self._moved(now)

    def answer(self, question: str, now: Vectors) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        if question == _TAKE:
            self._take(TableRows(np.empty(0, np.int64)), np.empty((0, self.embeddings.weight.shape[1]), np.float32))
        elif question == _MOVED:
            self._moved(now)
        return question in {_TAKE, _MOVED}

    def _take(self, rows: TableRows, vectors: Floats) -> None:
        places, workers = self.embeddings.places, self.embeddings.workers
        if not self.is_known:
            lines, width = len(places.here), self.embeddings.weight.shape[1]
            self._vectors = zeros_in_scratch(lines * width, np.float32).reshape(lines, width)
            self._places = places
        route = Route.of(torch.from_numpy(rows), places, workers)
        self._vectors[route.asked.numpy()] = route.push(torch.from_numpy(vectors)).numpy()

    def _moved(self, now: Vectors) -> TableRows:
        places, count = self.embeddings.places, len(self.embeddings.places.here)
        pieces = (torch.arange(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE))
        here = torch.cat(
            [torch.empty(0, dtype=torch.int64), *(self._moved_of(places.rows_at(one), now) for one in pieces)]
        )
        return TableRows(ascending(at_first(self.embeddings.workers, here).numpy()))

    @torch.no_grad()
    def _moved_of(self, rows: Tensor, now: Vectors) -> Tensor:
        """Return those of rows (n,) of this rank that have moved, (m,)."""
        rows = rows[self.table.in_use.among(rows)]
        before = torch.from_numpy(self._vectors[self.embeddings.places.local(rows).numpy()])
        # The vector of a row is the same, bit for bit, among however many others it is made, but not alone.
        after = now(rows.expand(2) if len(rows) == 1 else rows)[: len(rows)].float().cpu()
        pairs = (before, after), (self._projected(before), self._projected(after))
        far = np.logical_or(*(are_apart(old.numpy(), new.numpy(), self._config.publish_bound) for old, new in pairs))
        return rows[torch.from_numpy(far)]

    def _projected(self, vectors: Tensor) -> Tensor:
        return project(vectors, self._config.tower)


def are_apart(before: Floats, after: Floats, bound: float) -> npt.NDArray[np.bool_]:
    """Say which vectors (n, d) differ by more than `bound` times the length that they had before, (n,)."""
    off, length = _squares(after - before), _squares(before)
    # Not "off > ...": what is not a number has moved, too.
    return ~(off <= bound * bound * length)


def _squares(vectors: Floats) -> Floats:
    squares: Floats = np.einsum("nd,nd->n", vectors, vectors)
    return squares
