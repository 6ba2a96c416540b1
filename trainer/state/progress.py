"""Progress of training: position in the stream, training segments, and results of prequential evaluation.

All metrics are means over events: every event counts once, whatever its user.
"""

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Final, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from weir.contracts import Document, Store
from weir.contracts.bundles.manifest import Stretch
from weir.contracts.storage.documents import write_document
from weir.contracts.storage.format import software_version
from weir.trainer.ranks.workers import Workers
from weir.trainer.step.model import Position

__all__ = ["Evaluation", "Progress", "continued", "mean_metrics", "save", "software"]


_STORED: Final = {"trained_window": "learnt", "trained_sequence": "learnt_sequence"}
"""Fields of the position that have other names in checkpoints."""


class Evaluation(Document):
    """``evaluations/<window>/<pane>.json``: how well the model predicted a window; every mapping is by k.

    `novelty_bits` is the mean self-information -log2 Q of the first k recommended items, and `recommended_count` their
    mean decayed count: correcting log Q moves both. Metrics are absent where there was no event or no item to rank.
    """

    window: str
    sequence: int = Field(ge=0)
    step: int = Field(ge=0, description="steps trained before")
    events: int = Field(ge=0, description="positive events evaluated")
    known: int = Field(ge=0, description="of these, events whose item was in the table")
    items: int = Field(ge=0, description="items ranked")
    seen_filtered: bool = Field(description="whether the user's recent items were left out of the rankings")
    recall: dict[int, float] = Field(default_factory=dict)
    ndcg: dict[int, float] = Field(default_factory=dict)
    popularity_recall: dict[int, float] = Field(default_factory=dict)
    popularity_ndcg: dict[int, float] = Field(default_factory=dict)
    novelty_bits: dict[int, float] = Field(default_factory=dict)
    recommended_count: dict[int, float] = Field(default_factory=dict)


def mean_metrics(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Return the means over all events of some evaluations, by names such as ``recall@20``; empty without metrics."""
    counted = [evaluation for evaluation in evaluations if evaluation.recall]
    total = sum(evaluation.events for evaluation in counted)
    means: dict[str, float] = {}
    for name in ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits"):
        for k in counted[0].recall if counted else ():
            means[f"{name}@{k}"] = sum(getattr(pane, name)[k] * pane.events for pane in counted) / total
    return means


def save(store: Store, evaluation: Evaluation) -> None:
    """Write an evaluation to the store; the bytes are the same for the same stream."""
    write_document(store, f"evaluations/{evaluation.window}.json", evaluation)


class Progress(NamedTuple):
    """Progress of training, as a checkpoint stores it.

    `position` is the position in the stream, `time_ms` the newest event time in the frequencies, in milliseconds, and
    `recent` the newest evaluations. `stretches` are the training segments so far: ranks, threads, device, software.
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
        segments = {"stretches": stretches} if stretches else {}
        progress = {"position": position, "time_ms": self.time_ms, "recent": recent, **segments}
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


def continued(stretches: Sequence[Stretch], position: Position, workers: Workers) -> tuple[Stretch, ...]:
    """Return the training segments so far, with a new one that starts at `position` if the setup has changed."""
    now = Stretch(
        sequence=position.sequence,
        step=position.step,
        ranks=workers.world_size,
        threads=torch.get_num_threads(),
        device="cuda" if workers.device.type == "cuda" else "cpu",
        software=software(),
    )
    # A segment that ended before its first step has trained nothing.
    before = tuple(stretch for stretch in stretches if stretch.step < position.step)
    return before if before and before[-1].is_like(now) else (*before, now)


def software() -> dict[str, str]:
    """Return the software versions that affect the bits of a model."""
    return {"weir": software_version(), "torch": torch.__version__, "numpy": version("numpy")}
