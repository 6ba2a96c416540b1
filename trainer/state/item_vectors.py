"""Item vectors, as the towers and the index use them: embeddings plus features, from local or remote rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from weir.trainer.config import TowerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.featured import FeaturedItems
from weir.trainer.ranks.workers import Workers
from weir.trainer.towers import project
from weir.trainer.towers.features import FeatureInputs

__all__ = ["ItemVectors"]

_FETCH: Final = "vectors"
"""Query of rank 0 when it fetches vectors alone."""


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
