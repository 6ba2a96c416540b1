"""Training progress in the stream, as stored in a checkpoint."""

import json
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor

from weir.contracts.recipe import Stretch
from weir.trainer.state.evaluation import Evaluation
from weir.trainer.step.model import Position

__all__ = ["Progress"]

_STORED: Final = {"trained_window": "learnt", "trained_sequence": "learnt_sequence"}
"""Fields of the position whose names in checkpoints differ."""


class Progress(NamedTuple):
    """The position, the newest event time in the frequencies, in milliseconds, and the newest evaluations.

    `stretches` describe the training segments so far (ranks, threads, device, software).
    """

    position: Position
    time_ms: int
    recent: tuple[Evaluation, ...]
    stretches: tuple[Stretch, ...] = ()

    def encoded(self) -> Tensor:
        """Return the progress as JSON text, one byte per element."""
        position = {_STORED.get(name, name): value for name, value in vars(self.position).items()}
        if not position["attempt"]:
            # Omitted between windows.
            del position["attempt"]
        recent = [evaluation.model_dump(mode="json") for evaluation in self.recent]
        stretches = [stretch.model_dump(mode="json") for stretch in self.stretches]
        noted = {"stretches": stretches} if stretches else {}
        progress = {"position": position, "time_ms": self.time_ms, "recent": recent, **noted}
        return torch.frombuffer(bytearray(json.dumps(progress).encode()), dtype=torch.uint8)

    @classmethod
    def decoded(cls, stored: Tensor) -> Self:
        """Return the progress from the result of `encoded`."""
        progress, names = json.loads(stored.numpy().tobytes()), {stored: name for name, stored in _STORED.items()}
        position = Position(**{names.get(name, name): value for name, value in progress["position"].items()})
        recent = tuple(map(Evaluation.model_validate, progress["recent"]))
        # Absent before the first step.
        stretches = tuple(map(Stretch.model_validate, progress.get("stretches", ())))
        return cls(position, progress["time_ms"], recent, stretches)
