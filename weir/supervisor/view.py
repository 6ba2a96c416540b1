"""How `weir up` shows what goes on: a live table on a terminal, a plain line now and then elsewhere."""

import contextlib
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.supervisor.observer import Snapshot, mean_recall
from weir.text import plain, visible

__all__ = ["View"]

_PLAIN_SECONDS: Final = 10.0
_K: Final = 20
_GONE: Final = (OSError, SystemExit)
"""A terminal or pipe that has gone (rich ends the program then) must not take the processes with it."""


class View:
    """Shows snapshots and the children's important lines on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._printed = -_PLAIN_SECONDS
        self._problems: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the live table away; plain lines may follow."""
        if self._live:
            self._live.stop()

    def say(self, name: str, line: str) -> None:
        """Print a line of a process, with its name before it."""
        text = Text(f"{name:>8} | ", style="dim")
        text.append(visible(line), style="default")
        with contextlib.suppress(*_GONE):
            self._console.print(text, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot; what it could not read is said once, until it can be read again."""
        for part, problem in snapshot.problems.items():
            if self._problems.get(part) != problem:
                self.say("weir", f"cannot read: {problem}")
        self._problems = snapshot.problems
        if self._live:
            with contextlib.suppress(*_GONE):
                self._live.update(_panel(snapshot))
        elif time.monotonic() - self._printed >= _PLAIN_SECONDS:
            self._printed = time.monotonic()
            facts = "; ".join(f"{name}: {value}" for name, value in _facts(snapshot))
            self.say("weir", f"{snapshot.seconds:.0f} s; {facts}")


def _panel(snapshot: Snapshot) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2))
    if snapshot.replayed is not None:
        table.add_row(Text("replay", style="bold"), ProgressBar(total=1.0, completed=snapshot.replayed, width=60))
    for name, value in _facts(snapshot):
        table.add_row(Text(name, style="bold"), plain(value))
    return Group(Text(f"weir up, {snapshot.seconds:.0f} s", style="bold cyan"), table)


def _facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    replayed = "" if snapshot.replayed is None else f", {snapshot.replayed:.0%} of the replay over"
    served = snapshot.served
    age = "" if snapshot.newest_event_age is None else f", newest event {snapshot.newest_event_age:.1f} s old"
    counts = snapshot.counts
    counted = f"{snapshot.dead} dead, {counts.duplicates:,} duplicates, {counts.late:,} late"
    unread = [("unreadable", ", ".join(snapshot.problems))] if snapshot.problems else []
    return [
        ("log", f"{counts.events:,} events in {snapshot.windows} windows, {counted}{replayed}"),
        ("trained", f"{snapshot.trained_sequence + 1} windows"),
        ("served", f"{served.bundle_version} with {served.items:,} items{age}" if served else "nothing yet"),
        ("recall", _recalls(snapshot)),
        *unread,
    ]


def _recalls(snapshot: Snapshot) -> str:
    values = {kind: mean_recall(snapshot.recalls, kind, _K) for kind in ("model", "served", "index", "popularity")}
    known = [f"{kind} {value:.3f}" for kind, value in values.items() if value is not None]
    return f"@{_K} {', '.join(known)}" if known else "not measured yet"
