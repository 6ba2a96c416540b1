"""The move of a store: a rebuild under other settings, a bundle of it, and the cut-over."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def options(section: str, changes: dict[str, Any]) -> Iterable[str]:
    """Return settings as a command takes them."""
    return [one for name, value in changes.items() for one in ("--set", f"{section}.{name}={value}")]


def rebuild(store: str, to: str, changes: dict[str, Any]) -> list[str]:
    """Return the command that rebuilds a store under other settings of the pipeline."""
    return ["rebuild", "--from", store, "--to", to, *options("pipeline", changes)]


@dataclass
class Move:
    """A store that moves, from its windows or from its log (a list of options): each step is done until it succeeds."""

    store: str
    to: str
    changes: dict[str, Any]
    log: list[str]
    is_cutting: bool = False
    """From the first attempt on, until it is complete: no other command changes the store."""
    is_complete: bool = False

    @classmethod
    def drawn(cls, rng: random.Random, store: str, to: str, log: str) -> "Move":
        """Draw other settings, and what the rebuild reads."""
        changes = {
            "window_seconds": rng.choice([60, 150, 400]),
            "user_shards": rng.choice([1, 2]),
            "history_length": rng.choice([1, 4, 6]),
        }
        return cls(store, to, changes, rng.choice([[], ["--log", log]]))

    def command(self, rng: random.Random, *, is_there: bool, has_bundle: bool) -> list[str]:
        """Return the next step, or one before it once more."""
        steps = [self._rebuild()]
        if is_there:
            # The file of the life names the settings of the store that moves.
            steps.append(["train", "--store", self.to, *options("pipeline", self.changes)])
        if has_bundle:
            steps.append([*self._rebuild(), "--cut-over"])
        chosen = steps[-1] if self.is_cutting or rng.random() < 0.7 else rng.choice(steps)
        self.is_cutting = "--cut-over" in chosen
        return chosen

    def note(self, command: list[str], status: int | None) -> None:
        """Note what became of a command."""
        self.is_complete |= "--cut-over" in command and status == 0

    def _rebuild(self) -> list[str]:
        return [*rebuild(self.store, self.to, self.changes), *self.log]
