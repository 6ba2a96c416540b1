"""How often users occur, for the losses that correct for it: recent counts, and the number of all users."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts import Keys
from sketches import DistinctCounter
from trainer.log_q.frequencies import FrequencyView

__all__ = ["Users"]


@dataclass
class Users:
    """The windows' sketches of users, merged and faded, and a counter of distinct users that never fades."""

    recent: FrequencyView
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, window_sketch: bytes, keys: Keys, event_ms: int) -> None:
        """Add a window: its serialised sketch of users, and the users' keys (n,), repeated or not."""
        self.recent.add(window_sketch, event_ms)
        self.distinct.update(keys)

    def counts(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return the decayed counts of users (n,); one who has just occurred counts half at least."""
        return np.maximum(self.recent.counts(keys), 0.5)

    @property
    def total(self) -> float:
        """Decayed events of all users."""
        return self.recent.sketch.total if self.recent.sketch else 0.0

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors, for the checkpoint."""
        flat = {f"recent.{name}": value for name, value in self.recent.state().items()}
        distinct = torch.frombuffer(bytearray(self.distinct.to_bytes()), dtype=torch.uint8)
        return flat | {"distinct": distinct, "time_ms": torch.tensor(self.recent.time_ms)}

    @classmethod
    def restore(cls, half_life_seconds: float | tuple[float, ...], state: dict[str, Tensor]) -> "Users":
        """Return what `state` describes."""
        recent = {name.removeprefix("recent."): value for name, value in state.items() if name.startswith("recent.")}
        view = FrequencyView.restore(half_life_seconds, int(state["time_ms"]), recent)
        return cls(view, DistinctCounter.from_bytes(state["distinct"].cpu().numpy().tobytes()))
