"""Create the optional parts of a state (features) when a window first needs them, and add them to AdamW."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from weir.trainer.items.featured import FeaturedItems
from weir.trainer.users.featured import FeaturedUsers

if TYPE_CHECKING:
    from weir.trainer.state.trainer_state import TrainerState

__all__ = ["start_features", "start_saved", "start_user_features"]


def start_features(state: "TrainerState") -> FeaturedItems:
    """Create the part that reads item features, untrained."""
    state.featured = FeaturedItems.fresh(state.config.features.buckets, state.embeddings)
    state.optimizer.extend(state.featured.parameters())
    return state.featured


def start_user_features(state: "TrainerState") -> FeaturedUsers:
    """Create the part that reads user features, untrained."""
    place = len(state.optimizer.parameters)
    state.featured_users = FeaturedUsers.fresh(state.config.features.buckets, state.embeddings.weight, place)
    state.optimizer.extend(state.featured_users.parameters())
    return state.featured_users


def start_saved(state: "TrainerState", saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Create the optional parts of a checkpoint, in the order in which AdamW numbers their parameters."""
    users = saved.get("user_features")
    users_first = users is not None and FeaturedUsers.place_in(users) == len(state.optimizer.parameters)
    if users_first:
        start_user_features(state)
    if "features" in saved:
        start_features(state)
    if users is not None and not users_first:
        start_user_features(state)
