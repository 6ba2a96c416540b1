"""The two bases of all settings, results and stored values: frozen pydantic models."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CommitRef", "FrozenModel", "StoredModel"]


class FrozenModel(BaseModel):
    """Cannot be changed, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredModel(FrozenModel):
    """Ignores fields that it does not know, so that it reads what a later minor format adds."""

    model_config = ConfigDict(extra="ignore")


class CommitRef(StoredModel):
    """One certain commit: its number, and its checksum, which stands for all commits up to it."""

    number: int = Field(ge=0)
    checksum: str
