"""Feature vectors: features of items are added to their embeddings, features of users to their tower output.

A feature's values are hashed into one table of vectors for all features (Weinberger et al., "Feature Hashing for Large
Scale Multitask Learning", ICML 2009), so new values and new features need no new parameters. A new item or user starts
with feature vectors that other items or users have trained.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from weir.contracts.interactions.features import MAX_DENSE

__all__ = ["FeatureInputs", "FeatureVectors", "feature_inputs"]


class FeatureInputs(NamedTuple):
    """Features of n items or users: hashed values `buckets` (n, V) with `weights` (n, V), and numbers `dense` (n, D).

    D is `MAX_DENSE`.
    """

    buckets: Tensor
    weights: Tensor
    dense: Tensor


def feature_inputs(parts: Sequence[Tensor], dense: Tensor, dtype: torch.dtype) -> FeatureInputs:
    """Return the inputs of n items or users: each categorical feature averages its values; numbers are padded.

    Parameters
    ----------
    parts
        Buckets of the values of each categorical feature, (n, V), -1 for none.
    dense
        Numbers (n, D) in standard deviations, 0 if unknown; D is at most `MAX_DENSE`.
    dtype
        Type of the vectors.
    """
    there = [part >= 0 for part in parts]
    weights = [part.double() / part.sum(1, keepdim=True).clamp(min=1) for part in there]
    padded = dense.new_zeros(len(dense), MAX_DENSE)
    padded[:, : dense.shape[1]] = dense
    # Bags must not be empty: each gets one place of weight 0.
    none = dense.new_zeros(len(dense), 1)
    buckets = torch.cat([none.int(), *(part.clamp(min=0) for part in parts)], 1)
    return FeatureInputs(buckets, torch.cat([none.double(), *weights], 1).to(dtype), padded.to(dtype))


class FeatureVectors(nn.Module):
    """Vectors of features, added to other vectors; zero at the start, so training starts as if there were none.

    Parameters
    ----------
    dimension
        Width of the vectors.
    buckets
        Size of the hash table of values.
    """

    def __init__(self, dimension: int, buckets: int) -> None:
        super().__init__()
        self.values = nn.EmbeddingBag(buckets, dimension, mode="sum")
        self.dense = nn.Linear(MAX_DENSE, dimension, bias=False)
        nn.init.zeros_(self.values.weight)
        nn.init.zeros_(self.dense.weight)

    def forward(self, vectors: Tensor, features: FeatureInputs) -> Tensor:
        """Return `vectors` (n, d) plus the feature vectors of the same items or users."""
        of_values = self.values(features.buckets, per_sample_weights=features.weights)
        return cast(Tensor, vectors + of_values + self.dense(features.dense))
