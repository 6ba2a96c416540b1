"""The two bases of all settings, results and stored values: frozen pydantic models."""

from pydantic import BaseModel, ConfigDict

__all__ = ["FrozenModel", "StoredModel"]


class FrozenModel(BaseModel):
    """Cannot be changed, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredModel(FrozenModel):
    """Ignores fields that it does not know, so that it reads what a later minor format adds."""

    model_config = ConfigDict(extra="ignore")
