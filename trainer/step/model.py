"""The interface of a model in a training step, implemented by the states of a stream and of an offline run.

A model may have a second phase, a scorer. The scorer reads vectors of the first phase and passes no gradient back, so
the first phase is bit-identical with and without it.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from weir.trainer.items.embeddings import Embeddings, Route
from weir.trainer.losses import ItemCache
from weir.trainer.negatives import RowList, RowValues
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.seeds import Purpose, derive, generator
from weir.trainer.towers import Tower
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.towers.mixture import MixtureOfLogits, build_scorer
from weir.trainer.towers.user_features import FeaturedUsers

__all__ = ["Fetched", "Model", "Position", "SecondPhase", "Totals", "rescored_columns"]


_TINY: Final = 1e-6
"""Added to a norm as by `torch.nn.utils.clip_grad_norm_`, so that older runs are reproduced bit for bit."""


@dataclass(frozen=True, eq=False)
class SecondPhase:
    """The scorer of the second phase and its optimiser; the same on every rank."""

    scorer: MixtureOfLogits
    optimizer: AdamW

    @classmethod
    def fresh(cls, config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> "SecondPhase | None":
        """Return the untrained second phase for the settings; None if `rescoring` is off."""
        if not config.rescoring.on:
            return None
        seed = derive(config.seed, Purpose.SCORER)
        scorer = build_scorer(config.rescoring, config.tower, seed).to(device, dtype)
        rate, decay = config.rescoring.learning_rate, config.optimizer.weight_decay
        return cls(scorer, AdamW(scorer.parameters(), rate, decay))

    def move(self, gradients: list[Tensor], limit: float | None) -> None:
        """Update the parameters by their gradients, scaled down to the norm `limit` if they exceed it."""
        if limit is not None:
            factor = (limit / (nn.utils.get_total_norm(gradients) + _TINY)).clamp(max=1.0)
            gradients = [factor * gradient for gradient in gradients]
        self.optimizer.step(gradients)


def rescored_columns(config: TrainerConfig, columns: Tensor | None, step: int) -> Tensor | None:
    """Return which of the shared negatives `columns` (C,) the second phase scores in a step; None if it is off.

    They are a random subset of at most `rescoring.negatives`, the same on every rank, with the density of the columns.
    """
    if columns is None or not config.rescoring.on:
        return None
    draw = generator(config.seed, Purpose.RESCORING, step)
    return columns[torch.randperm(len(columns), generator=draw)[: config.rescoring.negatives].to(columns.device)]


@dataclass
class Position:
    """Position of training in the stream: the next batch is `batch` of the window `sequence`.

    `step` counts steps since the beginning. `trained_window` and `trained_sequence` are name and number of the newest
    window with a trained step, `max_event_ms` is the time of the newest event in any trained window. `attempt` names
    the version of the window's files to which `batch` refers; it is empty between windows.
    """

    sequence: int = 0
    batch: int = 0
    step: int = 0
    trained_window: str = ""
    trained_sequence: int = -1
    max_event_ms: int = 0
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Size of the label matrix as observed: numbers of positives, users and items."""

    positives: float
    users: int
    items: int


class Fetched(NamedTuple):
    """Data of a step's distinct table rows (n,): `embeddings` (n, d), item `features`, if the model has any.

    `counts` and `log_q` return the items' decayed counts and log-probabilities by table row.
    """

    embeddings: Tensor
    counts: RowValues
    log_q: RowValues
    features: FeatureInputs | None = None


class Model(Protocol):
    """Towers, item embeddings and item frequencies of a model that can be trained; items are table rows."""

    config: TrainerConfig
    tower: Tower
    optimizer: AdamW
    embeddings: Embeddings
    position: Position
    cache: ItemCache | None
    """Item cache of `resampled_softmax`; its ids are table rows."""
    second: SecondPhase | None
    """Re-scorer, if `rescoring` is on."""
    featured_users: FeaturedUsers | None
    """User features, if the windows have any."""

    @property
    def live(self) -> Tensor:
        """Table rows in use, ascending, (V,)."""

    @property
    def in_use(self) -> RowList:
        """Table rows in use, as an object that computes the requested ones only."""

    @property
    def log_q(self) -> RowValues:
        """Log-probability of each item among the interactions of the stream, by row."""

    @property
    def totals(self) -> Totals:
        """The size of the label matrix."""

    def select(self, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct rows (n,) of `used` (m,), sorted by `Places.key`, and the index (m,) of each used row."""

    def fetch(self, route: Route, rows: Tensor) -> Fetched:
        """Return the data of distinct rows (n,), as from `select`, over their `route`; collective."""

    def compose(self, vectors: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return the towers' input (n, d) from embeddings (n, d) and features of n rows; differentiable."""
