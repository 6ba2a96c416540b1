"""Check that the numbers of a state or content are finite."""

import torch
from torch import Tensor

from weir.contracts.bundle_files import is_finite
from weir.trainer.export.content import Content
from weir.trainer.items.rows import TableRows
from weir.trainer.state.codec import Stateful, flatten
from weir.trainer.state.trainer_state import TrainerState

__all__ = ["fault_of", "fault_of_items"]


@torch.no_grad()
def fault_of(state: TrainerState, rows: TableRows | None = None) -> str | None:
    """Return which parameters or optimiser state are NaN or infinite, or have an infinite norm; None if all are finite.

    Of the table, all rows are checked, or only the touched `rows` (n,): the others were checked before.
    """
    for name, norm in _norms(state, rows).items():
        # A norm is finite only if every number is; an overflowing norm means that the next step overflows, too.
        if not bool(norm.isfinite()):
            return f"{name} contains NaN or infinity, or its norm overflows"
    return None


def fault_of_items(content: Content) -> str | None:
    """Return which of a content's embeddings and vectors are NaN or infinite; None if all are finite."""
    for name, array in (("embeddings", content.embeddings), ("vectors", content.vectors)):
        if not is_finite(array):
            return f"its {name} contain NaN or infinity"
    return None


def _norms(state: TrainerState, rows: TableRows | None) -> dict[str, Tensor]:
    """Return the norm of every floating-point tensor that training depends on, by name.

    Norms of the table cover the given `rows` (n,), or all.
    """
    parts: dict[str, Stateful] = {"tower": state.tower, "optimizer": state.optimizer}
    if state.featured is not None:
        parts["features"] = state.featured.tower
    if state.featured_users is not None:
        parts["user_features"] = state.featured_users.tower
    if state.second is not None:
        parts["rescoring"] = state.second.scorer
        parts["rescoring_optimizer"] = state.second.optimizer
    table = state.embeddings.norms(rows)
    others = {name: value for name, value in flatten(parts).items() if value.is_floating_point()}
    return {f"embeddings.{name}": norm for name, norm in table.items()} | {
        name: torch.linalg.vector_norm(value) for name, value in others.items()
    }
