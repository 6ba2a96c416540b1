"""Settings of item and user features."""

from pydantic import Field

from weir.contracts.models import FrozenModel

__all__ = ["FeaturesConfig"]


class FeaturesConfig(FrozenModel):
    """Features of items and users; which there are, the windows say (`pipeline.item_features`, `user_features`)."""

    buckets: int = Field(
        default=4096,
        ge=0,
        lt=2**31,
        description="vectors that the values of all categorical features are hashed into, those of items and those of "
        "users each; 0: features are not used",
    )
