"""What a training step needs of a model: the state of a stream, or of an offline run."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from weir.trainer.config import TrainerConfig
from weir.trainer.items.embeddings import Embeddings
from weir.trainer.items.route import Route
from weir.trainer.losses import ItemCache
from weir.trainer.negatives import RowList, RowValues
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.rescoring import SecondPhase
from weir.trainer.towers import Tower
from weir.trainer.towers.features import FeatureInputs
from weir.trainer.users.featured import FeaturedUsers

__all__ = ["Fetched", "Model", "Position", "Totals"]


@dataclass
class Position:
    """The model has been trained on the batches before `batch` of window `sequence`, and on all windows before it.

    `step` counts steps since the beginning; `trained_window` names the newest window that any step has touched (its
    sequence is `trained_sequence`), `max_event_ms` is the newest event in any of them. `attempt` names the files that
    `batch` counts in, and is empty between windows.
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
    """The label matrix as far as it is known: the number of positives, of users and of items."""

    positives: float
    users: int
    items: int


class Fetched(NamedTuple):
    """The `embeddings` (n, d) of a step's rows, and by row, for any of these, their items' `counts` and `log_q`.

    `features` are those of the same items, where the model reads any.
    """

    embeddings: Tensor
    counts: RowValues
    log_q: RowValues
    features: FeatureInputs | None = None


class Model(Protocol):
    """Towers, item embeddings and frequencies, all by table row."""

    config: TrainerConfig
    tower: Tower
    optimizer: AdamW
    embeddings: Embeddings
    position: Position
    cache: ItemCache | None
    """Of `resampled_softmax`; its ids are table rows."""
    second: SecondPhase | None
    """Of `rescoring`."""
    featured_users: FeaturedUsers | None
    """Where windows have user features."""

    @property
    def live(self) -> Tensor:
        """Rows that items own, ascending, (V,)."""

    @property
    def in_use(self) -> RowList:
        """The same, for those who need some of them."""

    @property
    def log_q(self) -> RowValues:
        """Log-probability that the stream carries each item, by row."""

    @property
    def totals(self) -> Totals:
        """The size of the label matrix."""

    def select(self, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct rows (n,), ascending by `Places.key`, whose embeddings a step needs for `used` ones (m,).

        The second tensor says where these are among them, (m,).
        """

    def fetch(self, route: Route, rows: Tensor) -> Fetched:
        """Return what a step reads of a route's rows (n,), as `select` orders them; all ranks call it together."""

    def compose(self, vectors: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return what the towers read, (n, d), given embeddings (n, d) and features of n rows; differentiable."""
