"""Which shared negatives are left out of which row."""

import torch
from torch import Tensor

__all__ = ["accidental_hits"]


def accidental_hits(columns: Tensor, forbidden: Tensor) -> Tensor:
    """List the columns that are no negatives of a row, as pairs; each once.

    Parameters
    ----------
    columns
        Items (C,) as numbers of any small set, such as the distinct rows of the batch.
    forbidden
        Items (b, F), with the same numbers, that must not be negatives of the row: its positive, and, where they
        are masked, its known positives. An item that is no column, such as -1 for one outside the set, masks nothing.

    Returns
    -------
    Tensor
        (row, column) pairs, (H, 2). Time and memory grow with C log C + b F log C + H: no (b, C) matrix
        is made.
    """
    held, order = torch.sort(columns)
    wanted = forbidden.sort(1).values
    first = torch.searchsorted(held, wanted)
    times = (torch.searchsorted(held, wanted, right=True) - first).masked_fill(_repeated(wanted), 0).flatten()
    rows = torch.arange(len(forbidden), device=columns.device).repeat_interleave(forbidden.shape[1])
    rows, starts = rows.repeat_interleave(times), first.flatten().repeat_interleave(times)
    # The places of one item are neighbours in `held`: count on from the first of each run.
    started = (times.cumsum(0) - times).repeat_interleave(times)
    places = starts + torch.arange(len(rows), device=columns.device) - started
    return torch.stack([rows, order[places]], 1)


def _repeated(ordered: Tensor) -> Tensor:
    """Mark entries that equal their left neighbour."""
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return repeated
