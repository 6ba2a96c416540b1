"""Promotion of a variant to champion, decided by the gate from the monitor's comparison."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weir.contracts import Store
from weir.contracts.comparison import Comparison, Measure
from weir.contracts.variants import Champion, crown, log_of
from weir.trainer.config import TrainerConfig
from weir.trainer.export.gate import Gate

__all__ = ["Challenge"]

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS: Final = 5.0


@dataclass
class Challenge:
    """Checks, in the trainer of `variant`, whether it has beaten the champion; not thread-safe."""

    store: Store
    config: TrainerConfig
    gate: Gate
    variant: str
    clock: Callable[[], float] = time.monotonic
    _next: float = field(default=-float("inf"), init=False)
    _said: str = field(default="", init=False)

    def decide(self) -> Champion | None:
        """Promote the variant to champion if the gate decides so and no line is pinned; return the new champion."""
        measure = self.config.promote_by
        if measure == "never" or self.clock() < self._next:
            return None
        self._next = self.clock() + _SECONDS_BETWEEN_LOOKS
        try:
            found = self._decide(measure)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store, training continues
            if str(error) != self._said:
                logger.error("it is not known whether %s is to be served to all: %s", self.variant, error)
            self._said = str(error)
            return None
        if found is not None:
            logger.info("%s is served to all from now on: %s", found.variant, found.verdict)
        return found

    def _decide(self, measure: Measure) -> Champion | None:
        comparison, champion = Comparison.read(self.store, self.variant), Champion.read(self.store)
        if comparison is None or comparison.champion != champion.variant or self.variant in champion.beaten:
            return None
        verdict = self.gate.challenged(comparison, measure)
        if verdict is None or not verdict.promoted:
            return None
        if any(log_of(self.store, line).pin() for line in (champion.variant, self.variant)):
            return None
        return crown(self.store, self.variant, "the trainer", verdict.sentence)
