"""Second phase in a training step: its negatives, its scorer and its optimiser.

It reads vectors of the first phase and passes no gradient back: the first phase is bit-identical with and without
it.
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
"""Added to a norm as by `torch.nn.utils.clip_grad_norm_`, so that older runs are reproduced bit for bit."""


@dataclass(frozen=True, eq=False)
class SecondPhase:
    """The scorer and its optimiser; the same on every rank."""

    scorer: MixtureOfLogits
    optimizer: AdamW

    @classmethod
    def fresh(cls, config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> "SecondPhase | None":
        """Return the untrained second phase for the settings; None if `rescoring` is off."""
        if not config.rescoring.on:
            return None
        seed = derive(config.seed, Purpose.SCORER)
        scorer = build_scorer(config.rescoring, config.tower, seed).to(device, dtype)
        rate, decay = config.rescoring.learning_rate, config.optimizer.weight_decay
        return cls(scorer, AdamW(scorer.parameters(), rate, decay))

    def move(self, gradients: list[Tensor], limit: float | None) -> None:
        """Update the parameters by their gradients, scaled down to the norm `limit` if they exceed it."""
        if limit is not None:
            factor = (limit / (nn.utils.get_total_norm(gradients) + _TINY)).clamp(max=1.0)
            gradients = [factor * one for one in gradients]
        self.optimizer.step(gradients)


def rescored_columns(config: TrainerConfig, columns: Tensor | None, step: int) -> Tensor | None:
    """Return the shared negatives, of `columns` (C,), that the second phase scores in a step; None if it is off.

    A random subset of at most `rescoring.negatives`, the same on every rank: it has the density of the whole sample.
    """
    if columns is None or not config.rescoring.on:
        return None
    draw = generator(config.seed, Purpose.RESCORING, step)
    return columns[torch.randperm(len(columns), generator=draw)[: config.rescoring.negatives].to(columns.device)]
