"""The second phase in a step: its negatives, its scores, and its optimiser.

It reads what the first phase has made, and none of its gradient goes there: with it the first phase is, bit for bit,
what it is without.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from weir.trainer.config import TrainerConfig
from weir.trainer.step.adamw import AdamW
from weir.trainer.step.seeds import Purpose, derive, generator
from weir.trainer.towers.mixture import MixtureOfLogits, build_scorer

__all__ = ["SecondPhase", "rescored_columns"]

_TINY: Final = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm, so that older runs are made again bit for bit."""


@dataclass(frozen=True, eq=False)
class SecondPhase:
    """The scorer and what trains it; the same on every rank."""

    scorer: MixtureOfLogits
    optimizer: AdamW

    @classmethod
    def fresh(cls, config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> "SecondPhase | None":
        """Return the second phase of some settings before its first step; None where they have none."""
        if not config.rescoring.on:
            return None
        seed = derive(config.seed, Purpose.SCORER)
        scorer = build_scorer(config.rescoring, config.tower, seed).to(device, dtype)
        rate, decay = config.rescoring.learning_rate, config.optimizer.weight_decay
        return cls(scorer, AdamW(scorer.parameters(), rate, decay))

    def move(self, gradients: list[Tensor], limit: float | None) -> None:
        """Make a step with the gradients of the parameters, scaled down where their norm exceeds the limit."""
        if limit is not None:
            factor = (limit / (nn.utils.get_total_norm(gradients) + _TINY)).clamp(max=1.0)
            gradients = [factor * one for one in gradients]
        self.optimizer.step(gradients)


def rescored_columns(config: TrainerConfig, columns: Tensor | None, step: int) -> Tensor | None:
    """Return which of the shared negatives `columns` (C,) the second phase sees in a step; None where there is none.

    A random choice of at most `rescoring.negatives`, the same on every rank: a sample of a sample has its density.
    """
    if columns is None or not config.rescoring.on:
        return None
    draw = generator(config.seed, Purpose.RESCORING, step)
    return columns[torch.randperm(len(columns), generator=draw)[: config.rescoring.negatives].to(columns.device)]
