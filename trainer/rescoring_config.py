"""Settings of the second phase, which re-scores the candidates of the first one (docs/training.md#a-second-phase).

This module does not need torch, so that the command line can check settings at once.
"""

from typing import Literal

from pydantic import Field

from weir.contracts.models import FrozenModel

__all__ = ["RescoringConfig"]


class RescoringConfig(FrozenModel):
    """A scorer of pairs that is trained beside the towers, and scores the best items of the index again."""

    kind: Literal["none", "mixture_of_logits"] = Field(
        default="none", description="none: answers are those of the index; or a mixture of logits (MoL)"
    )
    user_components: int = Field(default=4, ge=1, description="component embeddings of a user")
    item_components: int = Field(default=4, ge=1, description="component embeddings of an item")
    dimension: int = Field(default=32, ge=1, description="length of a component embedding")
    hidden: int = Field(default=32, ge=1, description="width of the networks that weigh the pairs of components")
    temperature: float = Field(default=0.1, gt=0, description="the cosine of two components is divided by it")
    negatives: int = Field(
        default=256,
        ge=1,
        description="shared negatives that the second phase compares a row with, drawn again from those of the first "
        "one in each step, at most: they bound its memory and cost",
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's, for the second phase")
    candidates: int = Field(
        default=256, ge=1, le=1000, description="best items of the index that are scored again, per query"
    )

    @property
    def on(self) -> bool:
        """Whether the second phase is on."""
        return self.kind != "none"
