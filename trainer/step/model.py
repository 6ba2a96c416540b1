"""The model interface of a training step, implemented by the state of a stream and of an offline run."""

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
    """Training position: before batch `batch` of window `sequence`; all earlier batches and windows are trained.

    `step` counts steps since the beginning; `trained_window` names the newest window with a trained step (its
    sequence is `trained_sequence`), `max_event_ms` is the newest event in any trained window. `attempt` names the files
    that `batch` refers to, and is empty between windows.
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
    """Size of the label matrix as observed: positives, users and items."""

    positives: float
    users: int
    items: int


class Fetched(NamedTuple):
    """Embeddings (n, d) of a step's rows, and the `counts` and `log_q` of their items, indexed by row.

    `features` are those of the same items, if the model reads features.
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
    """Item cache of `resampled_softmax`; its ids are table rows."""
    second: SecondPhase | None
    """Re-scorer, if `rescoring` is on."""
    featured_users: FeaturedUsers | None
    """User features, if the windows have any."""

    @property
    def live(self) -> Tensor:
        """Rows in use, ascending, (V,)."""

    @property
    def in_use(self) -> RowList:
        """Rows in use, without a list of all."""

    @property
    def log_q(self) -> RowValues:
        """Log-probability of each item among the interactions of the stream, by row."""

    @property
    def totals(self) -> Totals:
        """The size of the label matrix."""

    def select(self, used: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct rows (n,) of `used` rows (m,), by `Places.key`, and each used row's index (m,)."""

    def fetch(self, route: Route, rows: Tensor) -> Fetched:
        """Return embeddings, counts and features of a route's rows (n,), ordered as by `select`; collective."""

    def compose(self, vectors: Tensor, features: FeatureInputs | None) -> Tensor:
        """Return the towers' input (n, d) from embeddings (n, d) and features of n rows; differentiable."""
