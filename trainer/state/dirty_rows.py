"""Changed rows of the item table over all ranks, and a fingerprint of the content of all rows.

The fingerprint is the sum, modulo 2^64, of a hash of each row's embedding and a hash of each row's item key. A touched
row costs one subtraction and one addition. Each rank hashes its own rows, and only sums are exchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import PADDING_KEY, ItemKeys
from weir.contracts.base.arrays import ascending
from weir.contracts.base.string_arrays import zeros_in_scratch
from weir.sketches.hashing import fmix64, splitmix64
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import Reader, RowSharding, TableRows
from weir.trainer.items.table import ItemTable
from weir.trainer.ranks.workers import Workers

__all__ = ["Fingerprint", "TouchedOfAll", "at_first", "hashes_of"]


_TOUCHED: Final = "touched"
_CLEAR: Final = "clear"
_LEFT: Final = "left"
_SINCE_SNAPSHOT: Final = "snapshot"


_LOOK: Final = "look"
_LOOK_AT_ALL: Final = "look at all"
_SEED: Final = 0x77656972
_AT_ONCE: Final = 1 << 14
"""Rows hashed at a time: they fit in the processor's cache."""

Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Lines = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TouchedOfAll:
    """Collects the changed rows of the item `table` and the `embeddings` from all ranks.

    Methods are collective, or called by rank 0 in `Workers.first`; `restart` is only collective. Features and the cache
    change only at these rows, counts together with the embeddings.
    """

    table: ItemTable
    embeddings: Embeddings

    def rows(self, reader: Reader) -> TableRows:
        """Return the rows changed since the reader's `clear`, ascending, (n,); on rank 0."""
        self.embeddings.workers.ask(f"{_TOUCHED} {reader.name}")
        return self._rows(reader)

    def left(self) -> ItemKeys:
        """Return the keys of items evicted since `clear(Reader.BUNDLE)`, ascending, (n,); on rank 0.

        They include `TOO_MANY` if a rank has too many to list.
        """
        self.embeddings.workers.ask(_LEFT)
        return self._left()

    def clear(self, reader: Reader) -> None:
        """Mark all rows as unchanged for a reader."""
        self.embeddings.workers.ask(f"{_CLEAR} {reader.name}")
        self._clear(reader)

    def take_over(self) -> None:
        """Replace the rows and keys since the bundle by the rows and keys since the snapshot, which is then dropped."""
        self.embeddings.workers.ask(_SINCE_SNAPSHOT)
        self._take_over()

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
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
        """Return on rank 0 the changed rows of all ranks; collective."""
        here = np.concatenate([self.table.touched_here(reader), self.embeddings.touched_here(reader)])
        return TableRows(ascending(at_first(self.embeddings.workers, torch.from_numpy(here)).numpy()))

    def _left(self) -> ItemKeys:
        """Return on rank 0 the evicted keys of all ranks; collective."""
        here = torch.from_numpy(self.table.left.keys)
        return ItemKeys(ascending(at_first(self.embeddings.workers, here).numpy()))

    def _clear(self, reader: Reader) -> None:
        """Mark this rank's rows as unchanged for a reader; drop the evicted keys, or collect later keys separately."""
        self.table.touched.clear(reader)
        self.embeddings.touched.clear(reader)
        if reader is Reader.BUNDLE:
            self.table.left.clear()
        elif reader is Reader.SNAPSHOT:
            self.table.left.snapshot()

    def _take_over(self) -> None:
        """Do `take_over` for this rank's rows."""
        for touched in (self.table.touched, self.embeddings.touched):
            touched.replace(Reader.BUNDLE, Reader.SNAPSHOT)
        self.table.left.keep_later()


def at_first(workers: Workers, lines: Tensor) -> Tensor:
    """Return on rank 0 the lines (n, ...) of all ranks, on other ranks an empty tensor; collective."""
    return workers.deliver(lines, np.zeros(len(lines), np.int64))


class Fingerprint:
    """Hashes of this rank's rows at the last update, in scratch files; `look` sums them over all ranks.

    Parameters
    ----------
    table, embeddings
        Source of the rows. Rows touched after an update must be tracked by `Reader.BUNDLE`, which may be cleared only
        after an update.
    """

    def __init__(self, table: ItemTable, embeddings: Embeddings) -> None:
        self._table, self._embeddings = table, embeddings
        self._stripes = RowSharding(embeddings.places.rank, embeddings.places.ranks)
        self._places: Places | None = None
        self._of_keys, self._of_embeddings = (np.empty(0, np.uint64) for _ in range(2))
        self._total = 0

    def look(self, *, at_all: bool = False) -> int:
        """Update the hashes of the touched rows, or of all; return on rank 0 the fingerprint, in [0, 2^64).

        Collective, or called by rank 0 in `Workers.first`.
        """
        self._embeddings.workers.ask(_LOOK_AT_ALL if at_all else _LOOK)
        return self._look(at_all=at_all)

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        if is_mine := question in {_LOOK, _LOOK_AT_ALL}:
            self._look(at_all=question == _LOOK_AT_ALL)
        return is_mine

    def _look(self, *, at_all: bool) -> int:
        """Do `look` on one rank."""
        if self._places == self._embeddings.places and not at_all:
            keys, embeddings = self._table.touched.rows(Reader.BUNDLE), self._embeddings.touched.rows(Reader.BUNDLE)
        else:
            # Also at first, and after the table has grown: rows may have moved to other lines.
            self._places, self._total = self._embeddings.places, 0
            keys, embeddings = _all(self._table.keys), _all(self._embeddings.weight)
            self._of_keys, self._of_embeddings = (
                zeros_in_scratch(len(lines), np.uint64) for lines in (keys, embeddings)
            )
        self._note(self._of_keys, keys, self._hashes_of_keys)
        self._note(self._of_embeddings, embeddings, self._hashes_of_embeddings)
        here = torch.from_numpy(np.array([self._total], np.uint64).view(np.int64))
        # Integers wrap around, so the sum is exact modulo 2^64.
        return int(at_first(self._embeddings.workers, here).sum()) % 2**64

    def _note(self, stored: Hashes, lines: Lines, hash_of: Callable[[Lines], Hashes]) -> None:
        """Recompute the `stored` hashes at some lines (n,) by `hash_of`, and update the total."""
        for first in range(0, len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            hashes = hash_of(some)
            change = int(hashes.sum(dtype=np.uint64)) - int(stored[some].sum(dtype=np.uint64))
            self._total = (self._total + change) % 2**64
            stored[some] = hashes

    def _hashes_of_keys(self, lines: Lines) -> Hashes:
        """Return the hashes of the item keys at lines (n,); 0 for free rows."""
        keys, rows = self._table.keys[lines], self._stripes.rows(lines)
        hashes = fmix64(keys.view(np.uint64) ^ _salt(rows))
        hashes[keys == PADDING_KEY] = 0
        return hashes

    def _hashes_of_embeddings(self, lines: Lines) -> Hashes:
        """Return the hashes of the embeddings at lines (n,)."""
        index = torch.from_numpy(lines)
        rows = TableRows(self._embeddings.places.rows_at(index).numpy())
        weight = self._embeddings.weight
        return hashes_of(rows, weight.index_select(0, index.to(weight.device)).float().cpu().numpy())


def hashes_of(rows: TableRows, lines: Floats) -> Hashes:
    """Return a hash of each line (n, d) that also depends on the line's row in `rows` (n,).

    The bits of the numbers, times random odd words, are summed (multilinear hashing), and the sum is mixed. The upper
    halves of the sums of two different lines are equal with a probability of 2^-32.

    Source: Lemire and Kaser, "Strongly Universal String Hashing is Fast", 2014, section 2.
    """
    bits = np.ascontiguousarray(lines).view(np.uint32).astype(np.uint64)
    return fmix64(bits @ (splitmix64(_SEED, lines.shape[1]) | np.uint64(1)) ^ _salt(rows))


def _all(lines: ItemKeys | Tensor) -> TableRows:
    """Return the numbers of all lines."""
    return TableRows(np.arange(len(lines)))


def _salt(rows: TableRows) -> Hashes:
    """Return a hash of each row number."""
    return fmix64(rows.view(np.uint64))
