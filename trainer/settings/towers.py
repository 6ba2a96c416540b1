"""Registry of the user towers, and their settings.

A new tower is one line here, one file in `trainer/towers/`, one test and one row in docs/training.md: see
CONTRIBUTING.md. This module does not need torch, so that the command line can check settings at once.
"""

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from weir.contracts.base.models import FrozenModel

__all__ = ["TOWERS", "TowerClass", "TowerConfig", "TowerKind", "kinds"]


class TowerClass(NamedTuple):
    """An entry of `TOWERS`: ``module:class`` in `weir.trainer.towers`, and whether it has a vector per user.

    A tower with a vector per user needs a closed set of users: it trains offline, from pairs, and not in a stream.
    """

    path: str
    knows_users: bool = False


TOWERS: Final = {
    "recency": TowerClass("recency:Recency"),
    "sasrec": TowerClass("sasrec:SasRec"),
    "esasrec": TowerClass("esasrec:ESasRec"),
    "hstu": TowerClass("hstu:Hstu"),
    "mean_pooling": TowerClass("mean_pooling:MeanPooling"),
    "matrix_factorisation": TowerClass("matrix_factorisation:MatrixFactorisation", knows_users=True),
    # Reads vectors propagated by `weir.trainer.towers.lightgcn`.
    "lightgcn": TowerClass("matrix_factorisation:MatrixFactorisation", knows_users=True),
}

if TYPE_CHECKING:
    TowerKind = str
else:
    TowerKind = Literal[tuple(TOWERS)]


def kinds(*, knows_users: bool) -> list[TowerKind]:
    """Return the kinds of towers with a vector per user, or of towers that read histories."""
    return [kind for kind, tower in TOWERS.items() if tower.knows_users == knows_users]


class TowerConfig(FrozenModel):
    """The user tower and the similarity of its output to an item."""

    kind: TowerKind = Field(
        default="recency",
        description="causal self-attention over the history: by distance and beside means that forget (recency), by "
        "place, plain (sasrec) or with gated layers (esasrec), or by distance without a softmax (hstu); a network over "
        "its mean; a vector per user, plain or propagated over the graph of interactions (the last two in `weir "
        "evaluate` and `weir bench` only)",
    )
    dimension: int = Field(default=64, ge=1, description="length of user and item vectors")
    history_length: int = Field(default=50, ge=1, description="newest items of a history that the tower reads")
    layers: int = Field(
        default=1, ge=1, description="transformer blocks, hidden layers (mean_pooling) or propagations (lightgcn)"
    )
    heads: int = Field(default=2, ge=1, description="attention heads; must divide the dimension")
    expansion: int = Field(default=4, ge=1, description="width of a block's hidden layer, in dimensions")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations dropped while training")
    normalised: bool = Field(default=True, description="cosine similarity (true) or the raw inner product")
    temperature: float = Field(default=0.1, gt=0, description="similarities are divided by it before the softmax")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dimension % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide dimension = {self.dimension}")
        return self

    @property
    def knows_users(self) -> bool:
        """Whether each user has a vector, and an example is a (user, item) pair instead of a history."""
        return TOWERS[self.kind].knows_users
