"""The recent frequency of items: the sketches of the windows, merged, with old counts fading by event time.

In-batch negatives are drawn by what the stream carries now, so log Q comes from this view and not from all time.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import sketches
from contracts import Keys
from sketches.bank import longest_agreeing
from sketches.protocol import log_probability

__all__ = ["FrequencyView", "Memory"]


@dataclass
class Memory:
    """The windows' sketches, merged and faded with one half-life.

    `weighed` is the sum of the squared weights of all events: by it the noise of a count is known.
    """

    half_life_seconds: float
    sketch: sketches.FrequencyEstimator
    weighed: float

    def add(self, fresh: sketches.FrequencyEstimator, later_seconds: float) -> None:
        """Add a window that ends so many seconds after those before it, or, below 0, before them."""
        squares = fresh.total
        faded = sketches.merge_fading(self.sketch, fresh, later_seconds, self.half_life_seconds) ** 2
        self.weighed = self.weighed * faded + squares if later_seconds > 0 else self.weighed + squares * faded

    @property
    def total(self) -> float:
        """Faded events, above 0."""
        # Before the first event all counts are 0, and so must be the rates; the square is divided by, too.
        return max(self.sketch.total, 1e-100)


@dataclass
class FrequencyView:
    """Decayed counts: one of an event at time t weighs ``2 ** (-(time_ms - t) / half-life)``.

    With several half-lives (ascending), an item is counted with the longest whose rate agrees with the rates of all
    shorter ones within 1.5 standard deviations of the counting noise: steady items by a long memory, which is precise,
    and those that change by a short one, which is up to date (`sketches.FrequencyBank`, with event time for its clock).
    """

    half_life_seconds: float | tuple[float, ...]
    time_ms: int = 0
    memories: list[Memory] = field(default_factory=list)

    @property
    def half_lives(self) -> tuple[float, ...]:
        """All half-lives in seconds of event time, ascending."""
        lives = self.half_life_seconds
        return lives if isinstance(lives, tuple) else (lives,)

    @property
    def sketch(self) -> sketches.FrequencyEstimator | None:
        """What was counted with the longest half-life; None before the first window."""
        return self.memories[-1].sketch if self.memories else None

    def add(self, window_sketch: bytes, event_ms: int) -> None:
        """Add a window's serialised sketch, whose newest event was at `event_ms`.

        A late pane is older than the view; it enters already faded, and the view's time stands.

        Raises
        ------
        ValueError
            If the bytes are no sketch, or one whose parameters differ from those before.
        """
        fresh = [sketches.load(window_sketch) for _ in self.half_lives]
        if not self.memories:
            self.memories = [Memory(life, one, one.total) for life, one in zip(self.half_lives, fresh, strict=True)]
            self.time_ms = event_ms
            return
        for memory, one in zip(self.memories, fresh, strict=True):
            memory.add(one, (event_ms - self.time_ms) / 1000)
        self.time_ms = max(self.time_ms, event_ms)

    def counts(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return the estimated decayed counts of keys, (n,), as events of the longest half-life."""
        if not self.memories:
            return np.zeros(len(keys))
        if len(self.memories) == 1:
            return self.memories[0].sketch.estimate(keys)
        rates = [memory.sketch.estimate(keys) / memory.total for memory in self.memories]
        chosen = longest_agreeing(rates, [memory.weighed / memory.total**2 for memory in self.memories])
        return chosen * self.memories[-1].total

    def log_q(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return the log-probability of each key among the keys given, (n,).

        It is normalised over them, because only items of the table are drawn: with the mass of other items in it,
        "improved" would weigh its rows wrongly. It stays below 0 for a lone item too.
        """
        if not len(keys):
            return np.zeros(0)
        raw = log_probability(self.counts(keys), self.sketch.total if self.sketch else 0.0, 0.5)
        normalised: npt.NDArray[np.float64] = np.minimum(raw - np.logaddexp.reduce(raw), -1e-6)
        return normalised

    def state(self) -> dict[str, Tensor]:
        """Return the view as tensors, for the checkpoint."""
        found = {
            name: torch.frombuffer(bytearray(memory.sketch.to_bytes()), dtype=torch.uint8)
            for name, memory in zip(self._names(), self.memories, strict=False)
        }
        if len(self.memories) > 1:
            found["weighed"] = torch.tensor([memory.weighed for memory in self.memories], dtype=torch.float64)
        return found

    @classmethod
    def restore(
        cls, half_life_seconds: float | tuple[float, ...], time_ms: int, state: dict[str, Tensor]
    ) -> "FrequencyView":
        """Return the view that `state` describes."""
        view = cls(half_life_seconds, time_ms)
        if state:
            # A single memory never asks for its noise.
            weighed = state["weighed"].tolist() if "weighed" in state else [0.0]
            found = [sketches.load(state[name].cpu().numpy().tobytes()) for name in view._names()]
            view.memories = [Memory(*parts) for parts in zip(view.half_lives, found, weighed, strict=True)]
        return view

    def _names(self) -> list[str]:
        """Name the tensors of the sketches; that of the longest half-life is the name it has alone."""
        return [*(f"shorter.{number}" for number in range(len(self.half_lives) - 1)), "sketch"]
