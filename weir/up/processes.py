"""The processes that `weir up` starts, and their command lines."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from weir.contracts.variants import MAIN
from weir.up.supervisor.child import ChildSpec

__all__ = ["Replayed", "child_specs"]


class Replayed(NamedTuple):
    """A finished log to replay: the file, and the duration in wall-clock seconds."""

    log: Path
    seconds: float


def child_specs(file: Path, ranks: int, replayed: Replayed | None, trained: Sequence[str] = (MAIN,)) -> list[ChildSpec]:
    """Return the processes, the source of events first; all read their settings from `file`.

    Each variant in `trained` has a trainer of its own.
    """
    environment = _environment(os.environ)
    common = ("--config", str(file))

    def spec(name: str, *arguments: str, forever: bool = True) -> ChildSpec:
        return ChildSpec(name, (sys.executable, "-m", "weir", *arguments, *common), environment, forever)

    specs = [
        spec("pipeline", "ingest", "--follow"),
        *(_trainer(spec, line, ranks) for line in trained),
        spec("server", "serve"),
        spec("monitor", "monitor"),
    ]
    first = specs[1].name
    if replayed is not None:
        # Event time passes during a replay, so it starts after the trainer, the slowest stage to start. The rest of
        # the trainer's start takes no longer than the start of the replay and its first window.
        arguments = ("replay", str(replayed.log), "--seconds", str(replayed.seconds))
        replay = spec("replay", *arguments, forever=False)
        specs.insert(0, replace(replay, starts_after=(first, "all ranks have started")))
    return specs


def _trainer(spec: Callable[..., ChildSpec], line: str, ranks: int) -> ChildSpec:
    command = ("train", "--follow", "--ranks", str(ranks))
    return spec("trainer", *command) if line == MAIN else spec(f"trainer-{line}", *command, "--variant", line)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the children's environment: no WEIR_ variables, as settings come from the file, one thread per pool."""
    kept = {name: value for name, value in environment.items() if not name.startswith("WEIR_")}
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **kept}
