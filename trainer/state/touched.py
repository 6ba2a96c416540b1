"""Which rows of the table have changed since a reader has last asked, on any rank."""

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
    """Joins what ranks have noted of items (`table`) and of `embeddings`; called as `Embeddings.fetch`, but `restart`.

    Features and the cache change for no other rows than these, counts with the embeddings.
    """

    table: ItemTable
    embeddings: Embeddings

    def rows(self, reader: Reader) -> TableRows:
        """Return the rows of which anything has changed since the reader's `clear`, ascending, (n,); for rank 0."""
        self.embeddings.workers.ask(f"{_TOUCHED} {reader.name}")
        return self._rows(reader)

    def left(self) -> ItemKeys:
        """Return the keys of items that have lost rows since the clear for bundles, ascending, (n,); for rank 0.

        One of them is `TOO_MANY` where a rank has lost track.
        """
        self.embeddings.workers.ask(_LEFT)
        return self._left()

    def clear(self, reader: Reader) -> None:
        """Begin again: for this reader, no row has changed."""
        self.embeddings.workers.ask(f"{_CLEAR} {reader.name}")
        self._clear(reader)

    def take_over(self) -> None:
        """Let rows and keys for bundles be those since the clear for snapshots, for which no more are noted."""
        self.embeddings.workers.ask(_SINCE_SNAPSHOT)
        self._take_over()

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
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
        """Let rows (n,) have changed for a reader and no others, and items have left; each rank notes its own."""
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
    """Return on rank 0 the lines (n, ...) of all ranks, on others none; all call it together."""
    return workers.deliver(lines, np.zeros(len(lines), np.int64))
