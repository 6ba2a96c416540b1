"""Whether the numbers of a state are finite."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from trainer.export.content import Content
from trainer.items.rows import TableRows
from trainer.state.codec import OptimizerState, Stateful, flatten
from trainer.state.trainer_state import TrainerState

__all__ = ["fault_of"]


@torch.no_grad()
def fault_of(content: Content) -> str | None:
    """Say which parameters, optimiser state or vectors are NaN or infinite, or have an infinite norm; None if none.

    Of the table, a content that is not whole has its touched rows looked at: the others were, when they were touched.
    """
    for name, value in _numbers(content.state, content.touched):
        # A norm is finite only if every number is; one that overflows means that the next step will, too.
        if not bool(torch.linalg.vector_norm(value).isfinite()):
            return f"{name} contains NaN or infinity, or its norm overflows"
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        if not np.isfinite(array).all():
            return f"its {name} contain NaN or infinity"
    return None


def _numbers(state: TrainerState, rows: TableRows | None) -> Iterator[tuple[str, Tensor]]:
    """Return every floating-point tensor that is trained or that training depends on, with its name.

    Those of the table have the lines of some `rows` (n,), or all.
    """
    parts: dict[str, Stateful] = {
        "embeddings": state.embeddings,
        "tower": state.tower,
        "optimizer": OptimizerState(state.optimizer),
    }
    if state.featured is not None:
        parts["features"] = state.featured.tower
    return ((name, value) for name, value in flatten(parts, rows).items() if value.is_floating_point())
