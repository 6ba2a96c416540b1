"""The offline model: the towers, embeddings and step of the stream, over a closed set of interactions.

Rows of the table: padding and the shared row, as in the stream; then every item of the data, in training or not;
then, if the user tower has a vector per user, every user.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from weir.sketches import CountMinSketch, ExactCounter, FrequencyEstimator, GapEstimator
from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.items.table import FIRST_ITEM, PADDING, TableRows
from weir.trainer.losses import ItemCache
from weir.trainer.offline.data import Interactions, Ints
from weir.trainer.ranks.device import device_of
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.model import Fetched, Position, SecondPhase, Totals
from weir.trainer.step.seeds import Purpose, derive, generator
from weir.trainer.towers import Tower, build_tower, project
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.towers.lightgcn import Graph
from weir.trainer.towers.user_features import FeaturedUsers

__all__ = ["Estimator", "OfflineModel"]

Estimator = Literal["exact", "count_min", "gap"]
_ESTIMATORS: Final[dict[Estimator, Callable[[], FrequencyEstimator]]] = {
    "exact": ExactCounter,
    "count_min": lambda: CountMinSketch(1 << 14, 4),
    "gap": lambda: GapEstimator(1 << 14, 4, 0.01),
}


@dataclass
class OfflineModel:
    """A `weir.trainer.step.model.Model` over I items and U users, created by `fresh`."""

    config: TrainerConfig
    tower: Tower
    optimizer: AdamW
    embeddings: Embeddings
    log_q: Tensor
    item_counts: Tensor
    totals: Totals
    items: int
    graph: Graph | None = None
    cache: ItemCache | None = None
    second: SecondPhase | None = None
    """None: offline runs train the first phase only, whatever the settings."""
    featured_users: FeaturedUsers | None = None
    """None: closed sets of interactions have no user features."""
    position: Position = field(default_factory=Position)

    @classmethod
    def fresh(
        cls, config: TrainerConfig, interactions: Interactions, train: Ints, estimator: Estimator = "exact"
    ) -> "OfflineModel":
        """Return the untrained model.

        Parameters
        ----------
        config
            Settings of the trainer; settings of the stream have no effect.
        interactions, train
            All interactions, and the row numbers of the training part.
        estimator
            Frequency estimator for log Q.

        Raises
        ------
        ValueError
            If the settings require a GPU and the machine has none.
        """
        device = device_of(config.device)
        users, items = interactions.users[train], interactions.items[train]
        size = FIRST_ITEM + len(interactions.item_ids)
        capacity = size + (len(interactions.user_ids) if config.tower.knows_users else 0)
        tower = build_tower(config.tower, derive(config.seed, Purpose.TOWER)).to(device)
        rate, decay = config.optimizer.learning_rate, config.optimizer.weight_decay
        counts = np.bincount(items + FIRST_ITEM, minlength=capacity).astype(np.float64)
        model = cls(
            config,
            tower,
            AdamW(tower.parameters(), rate, decay),
            _embeddings(config, capacity, device),
            _log_q(items, capacity, estimator).to(device),
            torch.from_numpy(counts).to(device),
            Totals(float(len(train)), len(np.unique(users)), len(np.unique(items))),
            len(interactions.item_ids),
        )
        if config.tower.kind == "lightgcn":
            model.graph = Graph(users + size, items + FIRST_ITEM, capacity, device=device)
        if config.loss.cache:
            draw = generator(config.seed, Purpose.CACHE)
            model.cache = ItemCache(config.loss.cache, capacity, draw, ids=model.live.cpu())
        return model

    @cached_property
    def live(self) -> Tensor:
        """Rows of the items that occur in training, (V,)."""
        return torch.nonzero(self.item_counts)[:, 0]

    @property
    def in_use(self) -> Tensor:
        """The same rows as `live`: offline, they are few enough to list."""
        return self.live

    def select(self, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a step needs, and the index of each used row among them.

        These are the distinct rows of `used`, or all rows if vectors are propagated over the graph.
        """
        return self.embeddings.places.distinct(used) if self.graph is None else (self._every_row, used)

    def fetch(self, route: Route, rows: Tensor) -> Fetched:  # noqa: ARG002 - the protocol's
        """Return the embeddings of a route's rows, and counts and log Q of all rows."""
        return Fetched(route.fetch(self.embeddings.weight), self.item_counts, self.log_q)

    def compose(self, vectors: Tensor, features: FeatureInputs | None = None) -> Tensor:  # noqa: ARG002 - no features
        """Return the embeddings of rows, propagated over the graph if the model has one."""
        return vectors if self.graph is None else self.graph.propagate(vectors, self.config.tower.layers)

    @torch.no_grad()
    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return the towers' input (capacity, d), and the vectors (I, d) of all items, normalised as in the search."""
        weight = self.embeddings.weight
        read = self.compose(weight)
        return read, project(read[FIRST_ITEM : FIRST_ITEM + self.items], self.config.tower)

    @property
    def _every_row(self) -> Tensor:
        """All rows of the table."""
        weight = self.embeddings.weight
        return torch.arange(len(weight), device=weight.device)

    @property
    def parameters(self) -> int:
        """Number of trained parameters, in the tower and in rows that occur in training."""
        reached = len(self.live) + (self.totals.users if self.config.tower.knows_users else 0)
        return sum(parameter.numel() for parameter in self.tower.parameters()) + reached * self.config.tower.dimension


def _embeddings(config: TrainerConfig, capacity: int, device: torch.device) -> Embeddings:
    """Return embeddings with all rows initialised, except the padding."""
    table = Embeddings(torch.zeros(capacity, config.tower.dimension, device=device))
    rows, draw = TableRows(np.delete(np.arange(capacity), PADDING)), generator(config.seed, Purpose.ROWS)
    table.initialise(rows, draw, config.optimizer.embedding_scale)
    return table


def _log_q(items: Ints, capacity: int, estimator: Estimator) -> Tensor:
    """Count the training items in order; return log Q by row, -1 for rows that are never sampled."""
    known = np.unique(items)
    counter = _ESTIMATORS[estimator]()
    counter.update(items)
    raw = counter.log_q(known)
    log_q = torch.full((capacity,), -1.0)
    log_q[torch.from_numpy(known) + FIRST_ITEM] = torch.from_numpy(raw - np.logaddexp.reduce(raw)).float()
    return log_q
