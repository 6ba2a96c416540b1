"""Random inputs of a loss, and their logits worked out one inner product at a time."""

from typing import NamedTuple

import torch
from torch import Tensor

from weir.trainer.losses.inputs import LossInputs, Population

LEAVES = ("users", "positives", "columns", "own", "extra_positives", "cached")


def random_inputs(
    seed: int,
    *,
    rows: int = 6,
    columns: int = 8,
    own: int = 3,
    extra_positives: int = 2,
    cached: int = 4,
    temperature: float = 0.5,
) -> LossInputs:
    """Return inputs in float64 whose vectors ask for gradients; every row leaves two columns out."""
    draw = torch.Generator().manual_seed(seed)

    def vectors(*shape: int) -> Tensor:
        return torch.randn(*shape, 4, generator=draw, dtype=torch.float64).requires_grad_()

    def log_q(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float64).uniform_(1e-3, 0.4, generator=draw).log()

    left_out = torch.stack([torch.randperm(columns, generator=draw)[:2] for _ in range(rows)]).flatten()
    counts = torch.empty(2, rows, dtype=torch.float64).uniform_(1, 9, generator=draw)
    return LossInputs(
        users=vectors(rows),
        positives=vectors(rows),
        columns=vectors(columns),
        hits=torch.stack([torch.arange(rows).repeat_interleave(2), left_out], 1),
        log_q_pos=log_q(rows),
        log_q_columns=log_q(columns),
        own=vectors(rows, own),
        extra_positives=vectors(rows, extra_positives),
        cached=vectors(cached),
        log_q_cached=log_q(cached),
        population=Population(counts[0], counts[1], 90.0, (40, 50)),
        temperature=temperature,
        generator=torch.Generator().manual_seed(seed + 1),
    )


class Dense(NamedTuple):
    """Logits of the positives (b,), columns (b, C), own negatives (b, N), extra positives (b, M), cache (b, S)."""

    pos: Tensor
    columns: Tensor
    own: Tensor
    extra_positives: Tensor
    cached: Tensor
    keep: Tensor


def dense(step: LossInputs) -> Dense:
    """Return all logits of a step, by loops."""
    keep = torch.ones(len(step.users), len(step.columns), dtype=torch.bool)
    for row, column in step.hits.tolist():
        keep[row, column] = False
    count = len(step.users)
    by_row = ([step.columns] * count, step.own, step.extra_positives, [step.cached] * count)
    pos = torch.stack([user.dot(item) for user, item in zip(step.users, step.positives, strict=True)])
    parts = [
        torch.stack(
            [torch.stack([user.dot(item) for item in items]) for user, items in zip(step.users, of, strict=True)]
        )
        for of in by_row
    ]
    scaled = [logits / step.temperature for logits in (pos, *parts)]
    return Dense(*scaled, keep)
