"""Inspects a store before a replay, to decide whether `weir up` continues, starts over or refuses."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from weir.contracts import LogState, Store, UserError
from weir.demo.replay import planned_log
from weir.errors import CommandError
from weir.text import counted

__all__ = ["CATALOGUE", "GENERATED", "Holdings", "holdings", "make_room", "remember_replay"]

GENERATED: Final = "generated.jsonl"
"""Name of the generated log of `weir up --demo` in the store; it is no sign that a replay has started."""

CATALOGUE: Final = "catalogue.jsonl"
"""Name of the file in the store that has the tags of the demo's items."""

_ORIGIN: Final = "state/replay-of"
"""File with the path of the log that is replayed into the store."""
_MARK: Final = "state/demo"
"""File that marked the store of a demo in version 0.1."""
_REPLAYED: Final = re.compile(r"(dead-letters/)?(segment-\d+|click-\d+-\w+)\.\w+(@\d+)?(/[^/]+\.jsonl#[\w:]+)?")
"""Names of the files of a replay or of `weir click`, and of retried rows of these files."""


@dataclass(frozen=True)
class Holdings:
    """The contents of a store: `replay` is the log that was replayed into it, None without a replay.

    `is_all`: the store holds no data but this replay. `windows` is the number of committed panes.
    """

    folder: Path
    is_empty: bool
    replay: Path | None
    is_all: bool
    windows: int

    def __str__(self) -> str:
        what = "other data" if self.replay is None else f"a replay of {self.replay.name}"
        if self.replay is not None and not self.is_all:
            what += " and events of another log"
        return f"{self.folder} holds {what}" + (f" ({counted(self.windows, 'window')})" if self.windows else "")


def holdings(store: Store, folder: Path) -> Holdings:
    """Return the contents of a store; locks, process output and the demo's log do not count."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    is_empty = all(
        path.suffix == ".lock" or path.parts[0] == "logs" or str(path) in {GENERATED, CATALOGUE} for path in files
    )
    replay = _replay(store)
    try:
        state = LogState.open(store)
    except UserError:
        # Damaged: its contents are unknown.
        return Holdings(folder, is_empty, replay, is_all=False, windows=0)
    return Holdings(folder, is_empty, replay, all(map(_REPLAYED.fullmatch, state.sources)), len(state.starts))


def _replay(store: Store) -> Path | None:
    if store.exists(_ORIGIN):
        return Path(store.read(_ORIGIN).decode())
    if (log := planned_log(store)) is not None:
        return log
    return Path(store.path(GENERATED)).resolve() if store.exists(_MARK) else None


def remember_replay(store: Store, log: Path) -> None:
    """Record the log that is replayed into a store."""
    store.write(_ORIGIN, str(log).encode())


def make_room(held: Holdings, log: Path, *, once: bool, fresh: bool) -> None:
    """Prepare a store for the replay of a log.

    A started replay of the same log is kept. Another replay is removed with `fresh` or if the user agrees. With `once`,
    the replay must start from an empty store. Raises `CommandError` if the store cannot be used.
    """
    if held.is_empty or (held.replay == log and not once and not fresh):
        return
    if held.replay is None or not held.is_all:
        raise CommandError(f"{held}, which is no replay alone: choose another --store")
    if not fresh and not _agreed(held):
        raise CommandError(f"{held}: --fresh removes it and starts over, or choose another --store")
    for path in held.folder.iterdir():
        if path.name != "state":
            _remove(path)
    for path in (held.folder / "state").iterdir():
        # Keep locks: one is held by this process.
        if path.suffix != ".lock":
            _remove(path)


def _agreed(held: Holdings) -> bool:
    return sys.stdin.isatty() and typer.confirm(f"{held}. Remove it and start over?")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
