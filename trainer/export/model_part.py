"""The part of a bundle that is not about items: what they are compared with, and where in the stream that was."""

from dataclasses import replace
from typing import NamedTuple, Self

from weir.contracts import BundleFile
from weir.contracts.commit import CommitRef
from weir.contracts.recipe import Stretch
from weir.trainer.export.scorer import scorer_to_onnx
from weir.trainer.export.soundness import fault_of
from weir.trainer.export.tower import tower_to_onnx
from weir.trainer.items.rows import TableRows
from weir.trainer.state.evaluation import mean_metrics
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.model import Position

__all__ = ["ModelPart"]


class ModelPart(NamedTuple):
    """Read of a state at once, so that it may go on while the bundle is made.

    `files` are the user tower and, where there are any, the scorer and what features say of items and users, by name.
    `fault` says what of the state is not finite.
    """

    files: dict[str, bytes]
    position: Position
    evaluation: dict[str, float]
    stretches: tuple[Stretch, ...]
    trained_commit: CommitRef | None
    fault: str | None

    @classmethod
    def of(cls, state: TrainerState, touched: TableRows | None) -> Self:
        """Read it; called as `Embeddings.norms`, of which `touched` rows (n,) are looked at, or all.

        Raises
        ------
        ExportError
            If a model does not survive the translation.
        """
        files: dict[str, bytes] = {BundleFile.TOWER: tower_to_onnx(state.tower, state.config.tower)}
        if state.second is not None:
            files[BundleFile.SCORER] = scorer_to_onnx(state.second.scorer)
        if state.featured is not None:
            files[BundleFile.FEATURES] = state.featured.weights.encode()
        if state.featured_users is not None:
            files[BundleFile.USER_FEATURES] = state.featured_users.weights.encode()
        evaluation, fault = mean_metrics(state.recent), fault_of(state, touched)
        return cls(files, replace(state.position), evaluation, state.stretches, state.trained_commit, fault)
