"""Item vectors as towers and index read them, and the writer of a bundle's vector files.

On one machine, each rank writes the items of its shard, and no vector is exchanged. With several machines, each rank
writes consecutive items, fetched from their shards, so that two machines never change the same page of a file. Without
a common disk, rank 0 fetches and writes all items.
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

from weir.contracts.storage.array_files import mapped, write_lines
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.items.placement import LiveRows
from weir.trainer.items.rows import FIRST_ITEM
from weir.trainer.ranks.coordination import done_by_all
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TowerConfig
from weir.trainer.state.tensor_files import array_of
from weir.trainer.towers import project
from weir.trainer.towers.features import FeatureInputs

__all__ = ["ItemPaths", "ItemVectors", "ItemWriter"]


_FETCH: Final = "vectors"
"""Query of rank 0 for `fetch`."""


_WRITE: Final = "items "
"""Prefix of rank 0's query for `ItemWriter.write`; the paths of the files follow."""

_AT_ONCE: Final = 1 << 16
"""Rows written at a time: 16 MB with 64 dimensions."""


@dataclass(frozen=True, eq=False)
class ItemVectors:
    """Reads the vectors of items: embeddings, plus the vectors of item features if the model has any."""

    embeddings: Embeddings
    featured: FeaturedItems | None
    tower: TowerConfig

    @property
    def workers(self) -> Workers:
        """The ranks that share the items."""
        return self.embeddings.workers

    def compose(self, embeddings: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return the vectors of n items from embeddings (n, d) and features; differentiable."""
        return embeddings if self.featured is None or features is None else self.featured.compose(embeddings, features)

    def kept(self, rows: Tensor) -> Tensor:
        """Return the vectors (n, d) of rows (n,) in this rank's shard."""
        features = None if self.featured is None else self.featured.kept(rows)
        return self.compose(self.embeddings.kept(rows), features)

    def together(self, rows: Tensor) -> Tensor:
        """Return the vectors of distinct rows (n,), different ones on each rank; collective."""
        route = self.embeddings.route(rows)
        features = None if self.featured is None else self.featured.fetched(route)
        return self.compose(route.fetch(self.embeddings.weight), features)

    def searched(self, rows: Tensor) -> Tensor:
        """Return index vectors of distinct rows (n,), different ones on each rank, on the CPU; collective."""
        return self.both(self.together, rows)[1]

    def both(self, read: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the item vectors (n, d) and the index vectors (n, d) of rows (n,), on the CPU.

        `read` is the method of this class that returns the item vectors.
        The bits of a vector do not depend on the other rows of the call.
        """
        # On the CPU, a vector has the same bits in any batch of two or more rows, but not alone.
        several = rows.expand(2) if len(rows) == 1 else rows
        vectors = read(several.to(self.embeddings.weight.device)).cpu()
        return vectors[: len(rows)], project(vectors, self.tower)[: len(rows)]

    def fetch(self, rows: Tensor) -> Tensor:
        """Return the vectors (n, d) of distinct rows (n,). Collective, or called by rank 0 in `Workers.first`."""
        self.workers.ask(_FETCH)
        return self.together(rows)

    def answer(self, question: str) -> bool:
        """Join the `fetch` that rank 0 calls in `Workers.first`; return False if `question` is not a `fetch`."""
        if question != _FETCH:
            return False
        self.together(torch.empty(0, dtype=torch.int64, device=self.embeddings.weight.device))
        return True


class ItemPaths(NamedTuple):
    """Paths of two NumPy files: `embeddings` (2 + n, d) of two special rows and n items, and index `vectors` (n, d)."""

    embeddings: str
    vectors: str


@dataclass(frozen=True)
class ItemWriter:
    """Writes the `vectors` of the items in the rows `in_use`."""

    in_use: LiveRows
    vectors: ItemVectors

    @torch.no_grad()
    def write(self, paths: ItemPaths) -> None:
        """Fill existing files of the right shapes. Collective, or called by rank 0 in `Workers.first`."""
        special, _ = self.vectors.both(self.vectors.fetch, torch.arange(FIRST_ITEM))
        write_lines(Path(paths.embeddings), 0, array_of(special))
        self.vectors.workers.ask(f"{_WRITE}{json.dumps(paths)}")
        if not self._write_together(paths):
            self._write_part(paths, range(len(self.in_use)), 1, self.vectors.fetch)

    def answer(self, question: str) -> bool:
        """Join the collective that rank 0 asks for in `Workers.first`; return False if it is another object's."""
        if not question.startswith(_WRITE):
            return False
        self._write_together(ItemPaths(*json.loads(question.removeprefix(_WRITE))))
        return True

    @torch.no_grad()
    def _write_together(self, paths: ItemPaths) -> bool:
        """Write this rank's part of the files; return False, and write nothing, if a rank cannot open the files."""
        workers = self.vectors.workers
        if workers.any(not all(os.access(path, os.R_OK | os.W_OK) for path in paths)):
            return False
        write = self._write_share if workers.has_nodes else self._write_own
        done_by_all(workers, partial(write, paths), len(self.in_use))
        return True

    def _write_own(self, paths: ItemPaths) -> int:
        """Write the items of this rank's shard, and return their number."""
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
        """Write this rank's consecutive share of the items, and return its size."""
        workers = self.vectors.workers
        share = workers.part(len(self.in_use))
        return self._write_part(paths, range(share.start, share.stop), workers.world_size, self.vectors.together)

    def _write_part(self, paths: ItemPaths, part: range, parts: int, read: Callable[[Tensor], Tensor]) -> int:
        """Write the items `part`, one of `parts` equal parts; all ranks call `read` equally often.

        Raises `OSError` only at the end, since other ranks need this rank's rows until then.
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
        """Return the table rows of the items with these numbers."""
        return self.in_use[torch.arange(numbers.start, numbers.stop)]
