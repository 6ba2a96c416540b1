"""In-batch negatives: all positives of the global batch, a sample of them, or each distinct item once.

Every rank knows the whole batch, so in-batch negatives across ranks need no communication.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weir.trainer.items.placement import distinct
from weir.trainer.negatives.sampler import Draw, Pool, RowValues, below_one

__all__ = ["InBatch"]


@dataclass(frozen=True)
class InBatch:
    """Use the positives of the batch as negatives.

    Parameters
    ----------
    stream_log_q
        Log-probability of each item among the interactions of the stream, by table row.
    limit
        Most negatives, drawn from the pool without replacement; None: no limit.
    deduplicate
        Whether the pool has every item once, however often the item is in the batch. The density is then the one of
        docs/logq.md, "Each item once": with it the mean of e^f / Q is an unbiased estimate of the sum over the
        catalogue.
    """

    stream_log_q: RowValues
    limit: int | None = None
    deduplicate: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` for a limit below 1."""
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, or None for no limit, got {self.limit}")

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Return the pool of negatives (N,); with neither `limit` nor `deduplicate`, column b is row b's positive."""
        if self.limit is None and not self.deduplicate:
            return Draw(positives, real)
        items = distinct(positives[real]) if self.deduplicate else positives[real]
        if self.limit is not None and len(items) > self.limit:
            items = items[torch.randperm(len(items), generator=generator)[: self.limit].to(items.device)]
        return Draw(items, torch.ones_like(items, dtype=torch.bool))

    def size(self, pool: Pool) -> int:
        """Return the number of real negatives in a draw from a batch with this pool."""
        size = pool.distinct if self.deduplicate else pool.positives
        return size if self.limit is None else min(size, self.limit)

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the log-density of the stream or, deduplicated to m distinct items, log P(item in pool) - log m."""
        log_q = self.stream_log_q[items]
        if not self.deduplicate:
            return log_q
        # A lone row draws no other positives; any finite value will do.
        draws = max(pool.positives, 1)
        return (log_inclusion(log_q.double(), draws) - math.log(max(pool.distinct, 1))).to(log_q.dtype)

    def log_q_own(self, items: Tensor, pool: Pool) -> Tensor:
        """Return `log_q` or, deduplicated, -log m: the row's positive is always one of the m distinct items."""
        if not self.deduplicate:
            return below_one(self.log_q(items, pool))
        return below_one(torch.full_like(self.stream_log_q[items], -math.log(max(pool.distinct, 1))))


def log_inclusion(log_q: Tensor, draws: int) -> Tensor:
    """Return log(1 - (1 - q)^draws) from log q: the log-probability of at least one draw, exact for tiny q too."""
    if not draws:
        return torch.full_like(log_q, -torch.inf)
    return torch.log(-torch.expm1(draws * torch.log1p(-log_q.exp())))
