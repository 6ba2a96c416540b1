"""What is known of an item is added to its embedding, and what is known of a user to what its history says.

A feature's values are hashed into one table of vectors for all features (Weinberger et al., "Feature Hashing for Large
Scale Multitask Learning", ICML 2009), so a value or a feature that is new needs no new parameters. An item or a user
that has only just come is placed by vectors that others have trained.
"""

from typing import NamedTuple, cast

from torch import Tensor, nn

from contracts.features import MAX_DENSE

__all__ = ["FeatureInputs", "FeatureVectors"]


class FeatureInputs(NamedTuple):
    """Features of n items, or users: `buckets` (n, V) counted with `weights` (n, V), and `dense` (n, MAX_DENSE)."""

    buckets: Tensor
    weights: Tensor
    dense: Tensor


class FeatureVectors(nn.Module):
    """Vectors of features, to be added to other vectors; all zeros at first, so training starts as without them.

    Parameters
    ----------
    dimension
        Length of the vectors.
    buckets
        Rows of the table that values are hashed into.
    """

    def __init__(self, dimension: int, buckets: int) -> None:
        super().__init__()
        self.values = nn.EmbeddingBag(buckets, dimension, mode="sum")
        self.dense = nn.Linear(MAX_DENSE, dimension, bias=False)
        nn.init.zeros_(self.values.weight)
        nn.init.zeros_(self.dense.weight)

    def forward(self, vectors: Tensor, features: FeatureInputs) -> Tensor:
        """Return `vectors` (n, d) plus what the features of the same items or users say."""
        said = self.values(features.buckets, per_sample_weights=features.weights)
        return cast(Tensor, vectors + said + self.dense(features.dense))
