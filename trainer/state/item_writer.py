"""The embeddings and vectors of all items as files of a bundle, which ranks write together.

Ranks of one machine write what they keep, wherever it belongs, and no vector goes to another rank. Those of several
machines write consecutive items each, which they get from the ranks that keep them: a page of a file is not changed by
two machines at once. Where machines have no disk in common, rank 0 fetches and writes all.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from weir.contracts.drafts import mapped, write_lines
from weir.trainer.items.live_rows import LiveRows
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranks.parts import done_by_all
from weir.trainer.state.codec import array_of
from weir.trainer.state.item_vectors import ItemVectors

__all__ = ["ItemPaths", "ItemWriter"]

_WRITE: Final = "items "
"""What rank 0 asks the others for, with the paths of the files."""

_AT_ONCE: Final = 1 << 16
"""Rows written at a time: with 64 dimensions 16 MB."""


class ItemPaths(NamedTuple):
    """NumPy files for the `embeddings` (2 + n, d) of the two special rows and of n items, and for their `vectors`."""

    embeddings: str
    vectors: str


@dataclass(frozen=True)
class ItemWriter:
    """Writes the `vectors` of the items that own the rows `in_use`."""

    in_use: LiveRows
    vectors: ItemVectors

    @torch.no_grad()
    def write(self, paths: ItemPaths) -> None:
        """Fill files that have their shapes (`weir.contracts.drafts`); called as `Embeddings.fetch`."""
        special, _ = self.vectors.both(self.vectors.fetch, torch.arange(FIRST_ITEM))
        write_lines(Path(paths.embeddings), 0, array_of(special))
        self.vectors.workers.ask(f"{_WRITE}{json.dumps(paths)}")
        if not self._write_together(paths):
            self._write_part(paths, range(len(self.in_use)), 1, self.vectors.fetch)

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        if not question.startswith(_WRITE):
            return False
        self._write_together(ItemPaths(*json.loads(question.removeprefix(_WRITE))))
        return True

    @torch.no_grad()
    def _write_together(self, paths: ItemPaths) -> bool:
        """Write what falls to this rank, as all do; return False, and write nothing, if any cannot open the files."""
        workers = self.vectors.workers
        if workers.any(not all(os.access(path, os.R_OK | os.W_OK) for path in paths)):
            return False
        write = self._write_share if workers.has_nodes else self._write_own
        done_by_all(workers, partial(write, paths), len(self.in_use))
        return True

    def _write_own(self, paths: ItemPaths) -> int:
        """Write the items that this rank keeps, and return how many they are."""
        (embeddings, vectors), written = (mapped(Path(path), "r+") for path in paths), 0
        for first in range(0, len(self.in_use), _AT_ONCE):
            rows = self._rows(range(first, min(first + _AT_ONCE, len(self.in_use))))
            own = self.vectors.embeddings.places.own(rows)
            numbers = first + own.numpy()
            both = self.vectors.both(self.vectors.kept, rows[own])
            embeddings[FIRST_ITEM + numbers], vectors[numbers] = map(array_of, both)
            written += len(own)
        return written

    def _write_share(self, paths: ItemPaths) -> int:
        """Write a share of the items, in their order, and return how many they are."""
        workers = self.vectors.workers
        share = workers.part(len(self.in_use))
        return self._write_part(paths, range(share.start, share.stop), workers.world_size, self.vectors.together)

    def _write_part(self, paths: ItemPaths, part: range, parts: int, read: Callable[[Tensor], Tensor]) -> int:
        """Write a part of the items, of so many alike, which `read` returns; all that read together come equally often.

        Raises `OSError` at the end: until then other ranks wait for what this one keeps.
        """
        failure: OSError | None = None
        for number in range(math.ceil(len(self.in_use) / parts / _AT_ONCE)):
            some = part[number * _AT_ONCE : (number + 1) * _AT_ONCE]
            both = self.vectors.both(read, self._rows(some))
            try:
                for path, special, piece in zip(paths, (FIRST_ITEM, 0), both, strict=True):
                    write_lines(Path(path), special + some.start, array_of(piece))
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return len(part)

    def _rows(self, numbers: range) -> Tensor:
        return self.in_use[torch.arange(numbers.start, numbers.stop)]
