"""Settings of item features."""

from pydantic import Field

from contracts.models import FrozenModel

__all__ = ["FeaturesConfig"]


class FeaturesConfig(FrozenModel):
    """Item features; which there are, the windows say (`pipeline.item_features`)."""

    buckets: int = Field(
        default=4096,
        ge=0,
        lt=2**31,
        description="vectors that the values of all categorical features are hashed into; 0: features are not used",
    )
