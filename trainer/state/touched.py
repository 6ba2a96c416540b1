"""Rows changed since a reader's last reset, collected over all ranks."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from weir.contracts import ItemKeys
from weir.contracts.ascending import ascending
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.rows import Reader, TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers

__all__ = ["TouchedOfAll", "at_first"]

_TOUCHED: Final = "touched"
_CLEAR: Final = "clear"
_LEFT: Final = "left"
_SINCE_SNAPSHOT: Final = "snapshot"


@dataclass(frozen=True)
class TouchedOfAll:
    """Changed rows of the item `table` and the `embeddings` over all ranks; called as `Embeddings.fetch`.

    `restart` is an exception. Features and the cache change only at these rows, counts together with the embeddings.
    """

    table: ItemTable
    embeddings: Embeddings

    def rows(self, reader: Reader) -> TableRows:
        """Return the rows changed since the reader's `clear`, ascending, (n,); on rank 0."""
        self.embeddings.workers.ask(f"{_TOUCHED} {reader.name}")
        return self._rows(reader)

    def left(self) -> ItemKeys:
        """Return the keys of items evicted since `clear` for bundles, ascending, (n,); on rank 0.

        They include `TOO_MANY` if a rank exceeded its limit.
        """
        self.embeddings.workers.ask(_LEFT)
        return self._left()

    def clear(self, reader: Reader) -> None:
        """Reset a reader: no row has changed for it."""
        self.embeddings.workers.ask(f"{_CLEAR} {reader.name}")
        self._clear(reader)

    def take_over(self) -> None:
        """Replace the rows and keys for bundles by those since the snapshot, and stop tracking the snapshot."""
        self.embeddings.workers.ask(_SINCE_SNAPSHOT)
        self._take_over()

    def answer(self, question: str) -> bool:
        """Serve a query of rank 0, as the callback of `Workers.first`; return whether it was for this object."""
        what, _, reader = question.partition(" ")
        if what == _TOUCHED:
            self._rows(Reader[reader])
        elif what == _LEFT:
            self._left()
        elif what == _CLEAR:
            self._clear(Reader[reader])
        elif what == _SINCE_SNAPSHOT:
            self._take_over()
        return what in {_TOUCHED, _CLEAR, _LEFT, _SINCE_SNAPSHOT}

    def restart(self, reader: Reader, rows: Tensor, left: ItemKeys) -> None:
        """Set a reader's changed rows (n,) and the evicted keys; collective, with the same arguments on all ranks."""
        self._clear(reader)
        self.embeddings.touch(rows, [reader])
        workers = self.embeddings.workers
        self.table.left.add(ItemKeys(left[workers.rank :: workers.world_size]), len(self.table.keys))

    def _rows(self, reader: Reader) -> TableRows:
        here = np.concatenate([self.table.touched_here(reader), self.embeddings.touched_here(reader)])
        return TableRows(ascending(at_first(self.embeddings.workers, torch.from_numpy(here)).numpy()))

    def _left(self) -> ItemKeys:
        here = torch.from_numpy(self.table.left.keys)
        return ItemKeys(ascending(at_first(self.embeddings.workers, here).numpy()))

    def _clear(self, reader: Reader) -> None:
        self.table.touched.clear(reader)
        self.embeddings.touched.clear(reader)
        if reader is Reader.BUNDLE:
            self.table.left.clear()
        elif reader is Reader.SNAPSHOT:
            self.table.left.snapshot()

    def _take_over(self) -> None:
        for touched in (self.table.touched, self.embeddings.touched):
            touched.replace(Reader.BUNDLE, Reader.SNAPSHOT)
        self.table.left.keep_later()


def at_first(workers: Workers, lines: Tensor) -> Tensor:
    """Return on rank 0 the lines (n, ...) of all ranks, on other ranks no lines; collective."""
    return workers.deliver(lines, np.zeros(len(lines), np.int64))
