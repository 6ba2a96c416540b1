"""What every sampler of negatives offers: a seeded draw, and the density that the draw really has.

Every rank knows the whole batch and uses the same seed, so all ranks form the same negatives. In-batch negatives
"gathered across ranks" are therefore just the positives of the batch: nothing is sent.
"""

from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Draw", "Pool", "Sampler", "below_one"]

_BELOW_ONE: Final = -1e-6


class Pool(NamedTuple):
    """The positives of a global batch in two numbers: how many are real, and how many different items they are."""

    positives: int
    distinct: int

    @classmethod
    def of(cls, positives: Tensor, real: Tensor) -> "Pool":
        """Count the positives (B,) where `real` (B,) is True."""
        return cls(int(real.sum()), len(torch.unique(positives[real])))

    @property
    def others(self) -> "Pool":
        """The pool as one of its rows sees it: its own positive is there for certain, only the others are drawn."""
        return Pool(max(self.positives - 1, 0), self.distinct)


class Draw(NamedTuple):
    """Negatives of one step: table rows `items`, (N,) for all rows or (B, N) by row; `real` (same) False = padding."""

    items: Tensor
    real: Tensor


class Sampler(Protocol):
    """Draws the negatives of a step and knows how likely each was."""

    def draw(self, positives: Tensor, real: Tensor, generator: torch.Generator) -> Draw:
        """Draw negatives for a batch.

        Parameters
        ----------
        positives
            Table rows of the global batch's positives, (B,), int64.
        real
            Which of them are no padding, (B,).
        generator
            Source of randomness, on the CPU.

        Returns
        -------
        Draw
            On the device of `positives`.
        """
        ...

    def log_q(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the log-probability that one negative of the step is each of `items` (any shape).

        `pool` is the batch that the step draws for: as a whole, or as one of its rows sees it (`Pool.others`).
        """
        ...

    def log_q_own(self, items: Tensor, pool: Pool) -> Tensor:
        """Return the same for a row's own positive, which `trainer.losses.exclude_positive` takes out; below 0.

        It differs from `log_q` where the row's own positive is among the negatives for certain and counts once.
        """
        ...


def below_one(log_q: Tensor) -> Tensor:
    """Keep densities below 1: a row whose positive is all that can be drawn has no negatives, and is no error."""
    return log_q.clamp(max=_BELOW_ONE)
