"""The embeddings and vectors of all items as files of a bundle, to which each rank writes those that it keeps.

Ranks of one machine write to the same files, and no vector goes to another rank. Several machines need not have a disk
in common: there rank 0 fetches and writes all.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from contracts.drafts import mapped
from trainer.items.embeddings import Embeddings
from trainer.items.live_rows import LiveRows
from trainer.items.rows import FIRST_ITEM
from trainer.ranks.parts import done_by_all
from trainer.state.codec import array_of

__all__ = ["ItemPaths", "ItemWriter"]

_WRITE: Final = "items "
"""What rank 0 asks the others for, with the paths of the files."""

_AT_ONCE: Final = 1 << 16
"""Rows written at a time: with 64 dimensions 16 MB."""

Vectors = Callable[[Tensor], Tensor]


class ItemPaths(NamedTuple):
    """NumPy files for the `embeddings` (2 + n, d) of the two special rows and of n items, and for their `vectors`."""

    embeddings: str
    vectors: str


@dataclass(frozen=True)
class ItemWriter:
    """Writes what is known of the items that own the rows `in_use`.

    Parameters
    ----------
    in_use, embeddings
        Which rows, and where they are.
    kept, fetched
        Return the vectors (n, d) of rows (n,) as towers read them: of rows that this rank keeps, or, called as
        `Embeddings.fetch`, of any.
    project
        Makes of them what the index holds, (n, d).
    """

    in_use: LiveRows
    embeddings: Embeddings
    kept: Vectors
    fetched: Vectors
    project: Vectors

    @torch.no_grad()
    def write(self, paths: ItemPaths) -> None:
        """Fill files that have their shapes (`contracts.drafts`); called as `Embeddings.fetch`."""
        special = torch.arange(FIRST_ITEM, device=self.embeddings.weight.device)
        mapped(Path(paths.embeddings), "r+")[:FIRST_ITEM] = array_of(self.fetched(special))
        if self.embeddings.workers.has_nodes:
            self._fill(paths, lambda rows: torch.arange(len(rows)), self.fetched)
            return
        self.embeddings.workers.ask(f"{_WRITE}{json.dumps(paths)}")
        self._write_own(paths)

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 asks of it, and say whether it did; for `Workers.first`."""
        if not question.startswith(_WRITE):
            return False
        self._write_own(ItemPaths(*json.loads(question.removeprefix(_WRITE))))
        return True

    @torch.no_grad()
    def _write_own(self, paths: ItemPaths) -> None:
        """Write what this rank keeps; called as `done_by_all`."""
        fill = partial(self._fill, paths, self.embeddings.places.own, self.kept)
        done_by_all(self.embeddings.workers, fill, len(self.in_use))

    def _fill(self, paths: ItemPaths, mine: Callable[[Tensor], Tensor], vectors_of: Vectors) -> int:
        """Write those of the items that are `mine`, as where they are among rows (n,); return how many."""
        (embeddings, vectors), written = (mapped(Path(path), "r+") for path in paths), 0
        for first in range(0, len(self.in_use), _AT_ONCE):
            rows = self.in_use[torch.arange(first, min(first + _AT_ONCE, len(self.in_use)))]
            chosen = mine(rows)
            count = len(chosen)
            # On the CPU, the vector of a row is the same, bit for bit, among however many others, but not alone.
            asked = rows[chosen.expand(2) if count == 1 else chosen]
            piece = vectors_of(asked.to(self.embeddings.weight.device)).cpu()
            numbers = first + chosen.numpy()
            embeddings[FIRST_ITEM + numbers] = array_of(piece[:count])
            vectors[numbers] = array_of(self.project(piece)[:count])
            written += count
        return written
