"""What it takes to make the model of a bundle again: the settings, and by what it was trained."""

from typing import Any, Literal

from pydantic import Field

from weir.contracts.models import StoredModel

__all__ = ["Recipe", "Stretch"]


class Stretch(StoredModel):
    """Steps that were trained by as many ranks and threads, on the same kind of device, with the same libraries."""

    sequence: int = Field(ge=0, description="the window in which it starts")
    step: int = Field(ge=0, description="steps before it")
    ranks: int = Field(ge=1, description="processes that shared each step")
    threads: int = Field(ge=1, description="threads of each; sums are cut into as many parts")
    device: Literal["cpu", "cuda"]
    software: dict[str, str] = Field(description="library -> version")

    def is_like(self, other: "Stretch") -> bool:
        """Say whether another stretch was trained by the same."""
        here, there = (one.model_dump(exclude={"sequence", "step"}) for one in (self, other))
        return here == there


class Recipe(StoredModel):
    """The settings of the trainer that decide what is trained and how it is searched, and the stretches in order."""

    settings: dict[str, Any]
    stretches: tuple[Stretch, ...]
