"""User frequencies, for losses that correct for them: decayed counts, and the number of distinct users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.contracts import UserKeys
from weir.sketches import DistinctCounter, FrequencyView

__all__ = ["Users"]


@dataclass
class Users:
    """Merged, decayed sketches of users, and a counter of distinct users that does not decay."""

    recent: FrequencyView
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, window_sketch: bytes, keys: UserKeys, event_ms: int) -> None:
        """Add a window: its serialised sketch of users, and the users' keys (n,), repeated or not."""
        self.recent.add(window_sketch, event_ms)
        self.distinct.update(keys)

    def counts(self, keys: UserKeys) -> npt.NDArray[np.float64]:
        """Return the decayed counts of users (n,) who have just occurred, each at least 0.5."""
        return np.maximum(self.recent.counts(keys), 0.5)

    @property
    def total(self) -> float:
        """Decayed number of events of all users."""
        return self.recent.total

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as arrays, for the checkpoint."""
        flat = {f"recent.{name}": value for name, value in self.recent.state_dict().items()}
        distinct = np.frombuffer(bytearray(self.distinct.to_bytes()), np.uint8)
        return flat | {"distinct": distinct, "time_ms": np.array(self.recent.time_ms)}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Load the result of `state_dict`."""
        recent = {name.removeprefix("recent."): value for name, value in state.items() if name.startswith("recent.")}
        self.recent.load_state_dict(recent)
        self.recent.time_ms = int(np.asarray(state["time_ms"]))
        self.distinct = DistinctCounter.from_bytes(np.asarray(state["distinct"]).tobytes())
