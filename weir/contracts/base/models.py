"""Base classes of settings, results and stored values: frozen pydantic models."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CommitRef", "FrozenModel", "StoredModel"]


class FrozenModel(BaseModel):
    """Immutable model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredModel(FrozenModel):
    """Immutable model that ignores unknown fields, so that it reads documents of a later minor format."""

    model_config = ConfigDict(extra="ignore")


class CommitRef(StoredModel):
    """Reference to one commit: its number, and its checksum, which covers all commits up to it."""

    number: int = Field(ge=0)
    checksum: str
