"""Checkpoints: the whole state, saved so that a killed run goes on as if nothing had happened.

``checkpoints/<name>/`` is written by `torch.distributed.checkpoint`, blocking (the asynchronous variant does not
survive being killed), and ``CHECKPOINT.json`` last: without it the directory is a ruin that nobody reads.
Names sort in the order of the stream.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from contracts import CorruptArtefactError, Store
from contracts.errors import in_one_line
from trainer.config import TrainerConfig
from trainer.distributed import Workers
from trainer.state import TrainerState

__all__ = ["CheckpointLog", "CheckpointMismatchError", "DamagedCheckpointError"]

logger = logging.getLogger(__name__)

_MARK: Final = "CHECKPOINT.json"


class CheckpointMismatchError(Exception):
    """The newest checkpoint was made with other settings; the message names each, with both values."""


class DamagedCheckpointError(CorruptArtefactError):
    """The newest checkpoint cannot be read; the message says how to go on."""


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    size: list[int]


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    sequence: int
    batch: int
    learnt: str
    settings: dict[str, Any]
    tensors: dict[str, _Shape]


@dataclass(frozen=True)
class CheckpointLog:
    """The checkpoints of a store."""

    store: Store
    keep: int = 2

    def names(self) -> list[str]:
        """Return the complete checkpoints, oldest first."""
        return [name.split("/")[1] for name in self.store.glob(f"checkpoints/*/{_MARK}")]

    def save(self, state: TrainerState, workers: Workers) -> str:
        """Save the state and return the checkpoint's name; all ranks must call it."""
        at = state.position
        name = f"{at.step:010d}-{at.sequence:08d}-{at.batch:08d}"
        folder = f"checkpoints/{name}"
        if name in workers.broadcast(self.names()):
            return name
        if workers.is_first:
            self.store.remove(folder)
        workers.barrier()
        flat = {key: value.contiguous() for key, value in state.tensors().items()}
        with _quiet():
            save_distributed(flat, checkpoint_id=self._url(folder), no_dist=workers.world_size == 1)
        if workers.is_first:
            mark = _Mark(
                step=at.step,
                sequence=at.sequence,
                batch=at.batch,
                learnt=at.learnt,
                settings=state.config.defining(),
                tensors={key: _shape(value) for key, value in flat.items()},
            )
            self.store.write(f"{folder}/{_MARK}", mark.model_dump_json(indent=2).encode())
            self._retire()
        workers.barrier()
        return name

    def load(self, config: TrainerConfig, workers: Workers) -> TrainerState | None:
        """Return the newest complete state, or None where there is none; all ranks must call it.

        Raises
        ------
        CheckpointMismatchError
            If it was made with other settings than `config`.
        DamagedCheckpointError
            If its files are damaged.
        """
        name = workers.broadcast(self.names()[-1:])
        if not name:
            return None
        folder = f"checkpoints/{name[0]}"
        flat = _empty(self._mark(folder, config).tensors)
        with _quiet():
            try:
                load_distributed(flat, checkpoint_id=self._url(folder), no_dist=workers.world_size == 1)
            except CheckpointException as error:
                # Its text is one traceback for each rank.
                causes = {f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values()}
                remedy = "remove the folder to continue from the one before"
                problem = f"cannot be read ({'; '.join(sorted(causes))}); {remedy}"
                raise DamagedCheckpointError(self.store.path(folder), problem) from error
        logger.info("continue from checkpoint %s", name[0])
        return TrainerState.restore(config, flat, workers.device)

    def _mark(self, folder: str, config: TrainerConfig) -> _Mark:
        path = self.store.path(f"{folder}/{_MARK}")
        try:
            mark = _Mark.model_validate_json(self.store.read(f"{folder}/{_MARK}"))
        except ValidationError as error:
            problem = f"is not a checkpoint of this version: {in_one_line(error)}"
            raise CheckpointMismatchError(f"{path}: {problem}") from error
        differences = _differences(mark.settings, config.defining())
        if differences:
            remedy = "use the same settings, or another store, or remove its checkpoints/"
            raise CheckpointMismatchError(f"{path}: made with other settings: {'; '.join(differences)}; {remedy}")
        return mark

    def _retire(self) -> None:
        complete = self.names()[-self.keep :]
        for folder in {name.split("/")[1] for name in self.store.glob("checkpoints/*/*")} - set(complete):
            self.store.remove(f"checkpoints/{folder}/{_MARK}")
            self.store.remove(f"checkpoints/{folder}")

    def _url(self, folder: str) -> str:
        return self.store.path(folder) if self.store.local_path is not None else f"{self.store.url}/{folder}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the remark that a process is alone: it is meant to be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _shape(tensor: Tensor) -> _Shape:
    return _Shape(dtype=str(tensor.dtype).removeprefix("torch."), size=list(tensor.shape))


def _differences(saved: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Name each setting that differs, with both values."""
    absent = "absent"
    return [
        f"{name} was {saved.get(name, absent)!r} and is now {wanted.get(name, absent)!r}"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name, absent) != wanted.get(name, absent)
    ]


def _empty(shapes: Mapping[str, _Shape]) -> dict[str, Tensor]:
    """Return tensors to load into; nothing else tells beforehand how far the table had grown."""
    return {name: torch.empty(shape.size, dtype=getattr(torch, shape.dtype)) for name, shape in shapes.items()}
