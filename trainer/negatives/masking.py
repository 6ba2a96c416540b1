"""Which negatives stand against which row."""

import torch
from torch import Tensor

__all__ = ["keep_mask"]


def keep_mask(columns: Tensor, real: Tensor, forbidden: Tensor) -> Tensor:
    """Tell which columns are negatives of which row.

    Parameters
    ----------
    columns
        Items (C,) as numbers in [0, n) of a small set, such as the distinct rows of the batch.
    real
        Which columns (C,) are not padding.
    forbidden
        Items (B, F) that must not be negatives of the row: its positive, and its history where that is masked.

    Returns
    -------
    Tensor
        (B, C) booleans. Time and memory grow with B times (C + F), not with B times C times F.
    """
    distinct, place = torch.unique(columns, return_inverse=True)
    size = max(int(columns.max()), int(forbidden.max())) + 1
    # Items that are no column are sent to one further place, which is cut off again.
    slot = torch.full((size,), len(distinct), device=columns.device)
    slot[distinct] = torch.arange(len(distinct), device=columns.device)
    hit = torch.zeros(len(forbidden), len(distinct) + 1, dtype=torch.bool, device=columns.device)
    hit.scatter_(1, slot[forbidden], True)  # noqa: FBT003 - the value to scatter
    return real & ~hit[:, place]
