"""Feature inputs of the item tower: the mean over the values of each feature, and standardised numbers."""

import torch
from torch import Tensor

from weir.contracts.feature_weights import LARGEST
from weir.trainer.items.features import FeatureTable
from weir.trainer.towers.features import FeatureInputs, feature_inputs

__all__ = ["inputs_of"]


def inputs_of(table: FeatureTable, buckets: Tensor, numbers: Tensor, dtype: torch.dtype) -> FeatureInputs:
    """Return the inputs of n items from the buckets (n, V) and numbers (n, D) of `FeatureTable.read`."""
    parts = torch.split(buckets, table.widths, 1) if table.widths else ()
    return feature_inputs(parts, _standardised(table, numbers), dtype)


def _standardised(table: FeatureTable, numbers: Tensor) -> Tensor:
    """Return numbers standardised as by `Moments.standardised`, for all dense features at once."""
    moments = [(one.mean, one.deviation) for one in table.moments]
    mean, deviation = numbers.new_tensor(moments).view(-1, 2).T
    scaled = ((numbers - mean) / deviation).clamp(-LARGEST, LARGEST).nan_to_num()
    return torch.where(deviation > 0, scaled, 0.0)
