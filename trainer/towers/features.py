"""What is known of an item is added to its embedding, and what is known of a user to what its history says.

A feature's values are hashed into one table of vectors for all features (Weinberger et al., "Feature Hashing for Large
Scale Multitask Learning", ICML 2009), so a value or a feature that is new needs no new parameters. An item or a user
that has only just come is placed by vectors that others have trained.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from weir.contracts.features import MAX_DENSE

__all__ = ["FeatureInputs", "FeatureVectors", "feature_inputs"]


class FeatureInputs(NamedTuple):
    """Features of n items, or users: `buckets` (n, V) counted with `weights` (n, V), and `dense` (n, MAX_DENSE)."""

    buckets: Tensor
    weights: Tensor
    dense: Tensor


def feature_inputs(parts: Sequence[Tensor], dense: Tensor, dtype: torch.dtype) -> FeatureInputs:
    """Return the inputs of n items or users: the mean over the values of each feature, and their numbers.

    Parameters
    ----------
    parts
        Of each categorical feature the buckets of its values, (n, V), -1 for none.
    dense
        Numbers (n, D) in standard deviations, 0 where they are unknown; D is at most `MAX_DENSE`.
    dtype
        Of the vectors.
    """
    there = [part >= 0 for part in parts]
    weights = [part.double() / part.sum(1, keepdim=True).clamp(min=1) for part in there]
    padded = dense.new_zeros(len(dense), MAX_DENSE)
    padded[:, : dense.shape[1]] = dense
    # A bag may not be without any place.
    none = dense.new_zeros(len(dense), 1)
    buckets = torch.cat([none.int(), *(part.clamp(min=0) for part in parts)], 1)
    return FeatureInputs(buckets, torch.cat([none.double(), *weights], 1).to(dtype), padded.to(dtype))


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
