"""The vectors of all items: what towers and index read, and the files of a bundle that ranks write together.

Ranks of one machine each write the items of their shard, and no vector is exchanged. With several machines, each rank
writes consecutive items, fetched from their shards, so that two machines never change the same page of a
file. Where machines have no common disk, rank 0 fetches and writes all.
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
"""Query of rank 0 when it fetches vectors alone."""


_WRITE: Final = "items "
"""Prefix of rank 0's query; the paths of the files follow."""

_AT_ONCE: Final = 1 << 16
"""Rows written at a time: 16 MB with 64 dimensions."""


@dataclass(frozen=True, eq=False)
class ItemVectors:
    """Vectors of items: their embeddings, plus the vectors of their features, if the model has any."""

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
        """Return the vectors as stored in the index, on the CPU; called as `together`."""
        return self.both(self.together, rows)[1]

    def both(self, read: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of rows (n,) by `read`, a method of this class, and as stored in the index; on the CPU.

        The bits of a vector do not depend on the other rows of the call.
        """
        # On the CPU, a vector has the same bits in any batch of two or more rows, but not alone.
        several = rows.expand(2) if len(rows) == 1 else rows
        found = read(several.to(self.embeddings.weight.device)).cpu()
        return found[: len(rows)], project(found, self.tower)[: len(rows)]

    def fetch(self, rows: Tensor) -> Tensor:
        """Return the vectors of distinct rows (n,); called as `Embeddings.fetch`."""
        self.workers.ask(_FETCH)
        return self.together(rows)

    def answer(self, question: str) -> bool:
        """Serve a `fetch` of rank 0, as the callback of `Workers.first`; return whether it was one."""
        if question != _FETCH:
            return False
        self.together(torch.empty(0, dtype=torch.int64, device=self.embeddings.weight.device))
        return True


class ItemPaths(NamedTuple):
    """NumPy files for the `embeddings` (2 + n, d) of the two special rows and n items, and for the items' `vectors`."""

    embeddings: str
    vectors: str


@dataclass(frozen=True)
class ItemWriter:
    """Writes the `vectors` of the items in the rows `in_use`."""

    in_use: LiveRows
    vectors: ItemVectors

    @torch.no_grad()
    def write(self, paths: ItemPaths) -> None:
        """Fill files of the right shapes (`weir.contracts.storage.array_files`); called as `Embeddings.fetch`."""
        special, _ = self.vectors.both(self.vectors.fetch, torch.arange(FIRST_ITEM))
        write_lines(Path(paths.embeddings), 0, array_of(special))
        self.vectors.workers.ask(f"{_WRITE}{json.dumps(paths)}")
        if not self._write_together(paths):
            self._write_part(paths, range(len(self.in_use)), 1, self.vectors.fetch)

    def answer(self, question: str) -> bool:
        """Serve a query of rank 0, as the callback of `Workers.first`; return whether it was for this object."""
        if not question.startswith(_WRITE):
            return False
        self._write_together(ItemPaths(*json.loads(question.removeprefix(_WRITE))))
        return True

    @torch.no_grad()
    def _write_together(self, paths: ItemPaths) -> bool:
        """Write this rank's part, as all ranks do; if any rank cannot open the files, only return False."""
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
        """Write the items `part`, one of `parts` equal parts, fetched by `read`, which all ranks call equally often.

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
        return self.in_use[torch.arange(numbers.start, numbers.stop)]
