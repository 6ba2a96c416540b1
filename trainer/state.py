"""Everything a run has learnt and where it stands: what a checkpoint holds."""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from contracts import WindowManifest
from trainer.config import TrainerConfig
from trainer.embeddings import Embeddings
from trainer.evaluation import Evaluation
from trainer.frequencies import FrequencyView
from trainer.item_table import ItemTable, RowChanges
from trainer.seeds import Purpose, derive, generator
from trainer.towers import build_tower

__all__ = ["Position", "TrainerState"]


@dataclass
class Position:
    """Batches before `batch` of window `sequence` have been learnt, and all windows before it.

    `step` counts steps since the beginning; `learnt` names the newest window that any step has touched (its
    sequence is `learnt_sequence`), `max_event_ms` is the newest event in any of them.
    """

    sequence: int = 0
    batch: int = 0
    step: int = 0
    learnt: str = ""
    learnt_sequence: int = -1
    max_event_ms: int = 0


@dataclass
class TrainerState:
    """The model, its optimisers, the item table, the frequencies and the position in the stream."""

    config: TrainerConfig
    tower: nn.Module
    optimizer: torch.optim.AdamW
    embeddings: Embeddings
    table: ItemTable
    frequencies: FrequencyView
    position: Position = field(default_factory=Position)
    recent: deque[Evaluation] = field(default_factory=deque)
    counts: npt.NDArray[np.float64] = field(init=False)
    log_q: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(self.recent, maxlen=self.config.gate_windows)
        self.refresh_frequencies()

    @classmethod
    def fresh(
        cls, config: TrainerConfig, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> "TrainerState":
        """Return the state before the first window; the same on every rank."""
        device = device or torch.device("cpu")
        table = ItemTable()
        rows = generator(config.seed, Purpose.ROWS, -1)
        embeddings = Embeddings.fresh(table.capacity, config.tower.dimension, rows, device, dtype)
        return cls(config, *_tower(config, device, dtype), embeddings, table, FrequencyView(config.half_life_seconds))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.embeddings.weight.device

    def absorb(self, manifest: WindowManifest, sketch: bytes, items: tuple[npt.NDArray[Any], ...]) -> RowChanges:
        """Take a window's items and frequencies in, before any step on it: rows change only here.

        Parameters
        ----------
        manifest
            Of the window.
        sketch
            The window's serialised sketch.
        items
            Keys, ids and counts (each (n,)) of the window's ``items.parquet``.
        """
        keys, ids, occurrences = items
        self.frequencies.add(sketch, manifest.max_event_ms)
        self.table.touch(keys, manifest.max_event_ms)
        evicted = np.empty(0, np.int64)
        if self.config.item_ttl_seconds is not None:
            evicted = self.table.expire(round(self.frequencies.time_ms - 1000 * self.config.item_ttl_seconds))
        # A late pane counts little in the decayed view, yet what it holds has certainly been seen.
        seen = np.maximum(self.frequencies.counts(keys), occurrences) >= self.config.admit_after
        admitted = self.table.admit(keys[seen], ids[seen], manifest.max_event_ms)
        self.embeddings.grow(self.table.capacity)
        self.embeddings.initialise(admitted, generator(self.config.seed, Purpose.ROWS, manifest.sequence))
        self.refresh_frequencies()
        return RowChanges(admitted, evicted)

    def refresh_frequencies(self) -> None:
        """Recompute counts and log Q of every table row, so that a step only gathers from them."""
        live = self.table.live
        self.counts = np.zeros(self.table.capacity)
        self.counts[live] = self.frequencies.counts(self.table.keys[live])
        # Rows that no item owns are never drawn; any value below 0 will do for them.
        log_q = torch.full((self.table.capacity,), -1.0, dtype=self.embeddings.weight.dtype)
        log_q[live] = torch.from_numpy(self.frequencies.log_q(self.table.keys[live])).to(log_q.dtype)
        self.log_q = log_q.to(self.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as one flat mapping of tensors."""
        flat = {f"tower.{name}": value.detach() for name, value in self.tower.state_dict().items()}
        for number, slot in self.optimizer.state_dict()["state"].items():
            flat |= {f"optimizer.{number}.{name}": value for name, value in slot.items()}
        flat |= {"embeddings.weight": self.embeddings.weight, "embeddings.squares": self.embeddings.squares}
        flat |= {f"table.{name}": value for name, value in self.table.state().items()}
        flat |= {f"frequencies.{name}": value for name, value in self.frequencies.state().items()}
        progress = {
            "position": vars(self.position),
            "time_ms": self.frequencies.time_ms,
            "recent": [evaluation.model_dump(mode="json") for evaluation in self.recent],
        }
        return flat | {"progress": _from_bytes(json.dumps(progress).encode())}

    @classmethod
    def restore(cls, config: TrainerConfig, flat: dict[str, Tensor], device: torch.device) -> "TrainerState":
        """Return the state that `tensors` had described."""
        progress = json.loads(_to_bytes(flat["progress"]))
        weight, squares = flat["embeddings.weight"].to(device), flat["embeddings.squares"].to(device)
        tower, optimizer = _tower(config, device, weight.dtype)
        tower.load_state_dict(_under("tower.", flat))
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer.", flat).items():
            number, _, slot = name.partition(".")
            slots.setdefault(int(number), {})[slot] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
        return cls(
            config,
            tower,
            optimizer,
            Embeddings(weight, squares),
            ItemTable.restore(_under("table.", flat)),
            FrequencyView.restore(config.half_life_seconds, progress["time_ms"], _under("frequencies.", flat)),
            Position(**progress["position"]),
            deque(Evaluation.model_validate(entry) for entry in progress["recent"]),
        )


def _tower(config: TrainerConfig, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, torch.optim.AdamW]:
    tower = build_tower(config.tower, derive(config.seed, Purpose.TOWER)).to(device, dtype)
    rate, decay = config.optimizer.learning_rate, config.optimizer.weight_decay
    return tower, torch.optim.AdamW(tower.parameters(), lr=rate, weight_decay=decay)


def _under(prefix: str, flat: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}


def _from_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
