"""What it takes to make the model of a bundle again: the settings, and by what it was trained."""

from typing import Any, Literal

from pydantic import Field

from contracts.models import StoredModel

__all__ = ["Recipe", "Stretch"]


class Stretch(StoredModel):
    """Steps that were trained by the same number of ranks, on the same kind of device, with the same libraries."""

    sequence: int = Field(ge=0, description="the window in which it starts")
    step: int = Field(ge=0, description="steps before it")
    ranks: int = Field(ge=1, description="processes that shared each step")
    device: Literal["cpu", "cuda"]
    software: dict[str, str] = Field(description="library -> version")

    def is_like(self, other: "Stretch") -> bool:
        """Say whether another stretch was trained by the same."""
        return (self.ranks, self.device, self.software) == (other.ranks, other.device, other.software)


class Recipe(StoredModel):
    """The settings of the trainer that decide what is trained and how it is searched, and the stretches in order."""

    settings: dict[str, Any]
    stretches: tuple[Stretch, ...]
