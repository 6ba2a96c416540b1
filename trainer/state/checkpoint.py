"""Checkpoints: the whole state, saved so that a killed run continues bit for bit.

``checkpoints/<name>/`` holds the tensors' bytes (`trainer.state.tensor_files`) and, written last, ``CHECKPOINT.json``
(`contracts.checkpoint`): without it the directory is incomplete and is never read. Every byte is verified before any
tensor is used, and loading executes nothing.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from contracts import CorruptArtefactError, Store, UserError
from contracts.checkpoint import (
    CHECKPOINT_MARK,
    CheckpointMark,
    FirstFormatError,
    checkpoint_names,
    read_checkpoint_mark,
)
from contracts.documents import write_document
from trainer.config import TrainerConfig
from trainer.ranks.workers import Workers
from trainer.state.tensor_files import describe, read_tensors, write_tensors
from trainer.state.trainer_state import TrainerState

__all__ = ["CheckpointLog", "CheckpointMismatchError", "DamagedCheckpointError"]

logger = logging.getLogger(__name__)


class CheckpointMismatchError(UserError):
    """The newest checkpoint was made with other settings, named with both values, or has the first format."""


class DamagedCheckpointError(CorruptArtefactError):
    """A file of the newest checkpoint is not what was written; the message names it and how to continue."""

    hint = ""


@dataclass(frozen=True)
class CheckpointLog:
    """The checkpoints of a store."""

    store: Store
    keep: int = 2

    def names(self) -> list[str]:
        """Return the complete checkpoints, oldest first."""
        return checkpoint_names(self.store)

    def save(self, state: TrainerState, workers: Workers) -> str:
        """Save the state and return the checkpoint's name; all ranks must call it, rank 0 writes."""
        at = state.position
        name = f"{at.step:010d}-{at.sequence:08d}-{at.batch:08d}"
        workers.first(lambda: self._save(name, state))
        return name

    def _save(self, name: str, state: TrainerState) -> None:
        if name in self.names():
            return
        folder, at = f"checkpoints/{name}", state.position
        # A killed run may have left a part of it.
        self.store.remove(folder)
        tensors = state.tensors()
        mark = CheckpointMark(
            step=at.step,
            sequence=at.sequence,
            batch=at.batch,
            trained_window=at.trained_window,
            settings=state.config.defining(),
            tensors=describe(tensors),
            files=write_tensors(self.store, folder, tensors),
        )
        write_document(self.store, f"{folder}/{CHECKPOINT_MARK}", mark)
        self._retire()

    def load(self, config: TrainerConfig, workers: Workers) -> TrainerState | None:
        """Return the newest complete state, or None where there is none; all ranks must call it.

        Raises
        ------
        CheckpointMismatchError
            If it was made with other settings than `config`, or has the first format.
        DamagedCheckpointError
            If a file of it is missing or not what was written.
        """
        newest = workers.broadcast(self.names()[-1:])
        if not newest:
            return None
        (name,) = newest
        try:
            mark = read_checkpoint_mark(self.store, name)
            self._compare(name, mark, config)
            tensors = read_tensors(self.store, f"checkpoints/{name}", mark.tensors, mark.files)
        except FirstFormatError as error:
            raise CheckpointMismatchError(str(error)) from error
        except CorruptArtefactError as error:
            remedy = f"remove checkpoints/{name} to continue from the one before"
            raise DamagedCheckpointError(error.path, f"{error.problem}; {remedy}") from error
        logger.info("continue from checkpoint %s", name)
        return TrainerState.restore(config, tensors, workers.device)

    def _compare(self, name: str, mark: CheckpointMark, config: TrainerConfig) -> None:
        differences = _differences(mark.settings, config.defining())
        if differences:
            path = self.store.path(f"checkpoints/{name}/{CHECKPOINT_MARK}")
            remedy = "use the same settings, or another store, or remove its checkpoints/"
            raise CheckpointMismatchError(f"{path}: made with other settings: {'; '.join(differences)}; {remedy}")

    def _retire(self) -> None:
        complete = self.names()[-self.keep :]
        for folder in {name.split("/")[1] for name in self.store.glob("checkpoints/*/*")} - set(complete):
            self.store.remove(f"checkpoints/{folder}/{CHECKPOINT_MARK}")
            self.store.remove(f"checkpoints/{folder}")


def _differences(saved: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Name each setting that differs, with both values."""
    absent = "absent"
    return [
        f"{name} was {saved.get(name, absent)!r} and is now {wanted.get(name, absent)!r}"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name, absent) != wanted.get(name, absent)
    ]
