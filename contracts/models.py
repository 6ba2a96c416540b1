"""The base of settings and results."""

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel"]


class FrozenModel(BaseModel):
    """A value that never changes, and that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
