"""What the towers and the index read of items, wherever their rows are."""

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
"""What rank 0 asks the others for when it alone wants some."""


@dataclass(frozen=True, eq=False)
class ItemVectors:
    """The vectors of items: their embeddings, with what features, if there are any, add to them."""

    embeddings: Embeddings
    featured: FeaturedItems | None
    tower: TowerConfig

    @property
    def workers(self) -> Workers:
        """The ranks that share the items."""
        return self.embeddings.workers

    def compose(self, embeddings: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return the vectors of embeddings (n, d) and features of n items; differentiable."""
        return embeddings if self.featured is None or features is None else self.featured.compose(embeddings, features)

    def kept(self, rows: Tensor) -> Tensor:
        """Return the vectors (n, d) of rows (n,) that this rank keeps."""
        features = None if self.featured is None else self.featured.kept(rows)
        return self.compose(self.embeddings.kept(rows), features)

    def together(self, rows: Tensor) -> Tensor:
        """Return those of distinct rows (n,), others on each rank; all ranks call it together."""
        route = self.embeddings.route(rows)
        features = None if self.featured is None else self.featured.fetched(route)
        return self.compose(route.fetch(self.embeddings.weight), features)

    def searched(self, rows: Tensor) -> Tensor:
        """Return the same as the index holds them, on the CPU; called as `together`."""
        return self.both(self.together, rows)[1]

    def both(self, read: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `read`, a method of this, returns of rows (n,), and the same as the index holds it; on the CPU.

        They have the same bits whatever is read at once.
        """
        # On the CPU, the vector of a row is the same among however many others it is made, but not alone.
        several = rows.expand(2) if len(rows) == 1 else rows
        found = read(several.to(self.embeddings.weight.device)).cpu()
        return found[: len(rows)], project(found, self.tower)[: len(rows)]

    def fetch(self, rows: Tensor) -> Tensor:
        """Return those of distinct rows (n,); called as `Embeddings.fetch`."""
        self.workers.ask(_FETCH)
        return self.together(rows)

    def answer(self, question: str) -> bool:
        """Take part in what rank 0 fetches alone, and say whether it did; for `Workers.first`."""
        if question != _FETCH:
            return False
        self.together(torch.empty(0, dtype=torch.int64, device=self.embeddings.weight.device))
        return True
