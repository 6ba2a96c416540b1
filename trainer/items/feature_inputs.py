"""What the item tower reads of features: the mean over the values of each, and numbers in standard deviations."""

import torch
from torch import Tensor

from contracts.feature_weights import LARGEST
from contracts.features import MAX_DENSE
from trainer.items.features import FeatureTable
from trainer.towers.features import FeatureInputs

__all__ = ["inputs_of"]


def inputs_of(table: FeatureTable, buckets: Tensor, numbers: Tensor, dtype: torch.dtype) -> FeatureInputs:
    """Return the inputs of n items, given what `FeatureTable.read` says of them: (n, V) and (n, D)."""
    parts = [part >= 0 for part in torch.split(buckets, table.widths, 1)] if table.widths else []
    weights = [part.double() / part.sum(1, keepdim=True).clamp(min=1) for part in parts]
    # A bag may not be without any place.
    none = buckets.new_zeros(len(buckets), 1)
    dense = numbers.new_zeros(len(numbers), MAX_DENSE)
    dense[:, : numbers.shape[1]] = _standardised(table, numbers)
    return FeatureInputs(
        torch.cat([none, buckets.clamp(min=0)], 1), torch.cat([none.double(), *weights], 1).to(dtype), dense.to(dtype)
    )


def _standardised(table: FeatureTable, numbers: Tensor) -> Tensor:
    """Return what `Moments.standardised` does, of all dense features at once."""
    moments = [(one.mean, one.deviation) for one in table.moments]
    mean, deviation = numbers.new_tensor(moments).view(-1, 2).T
    scaled = ((numbers - mean) / deviation).clamp(-LARGEST, LARGEST).nan_to_num()
    return torch.where(deviation > 0, scaled, 0.0)
