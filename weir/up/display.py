"""Status display of `weir up`: a live table on a terminal, else a plain line every ten seconds."""

import contextlib
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weir.serving.monitor.newest import mean_recall
from weir.text import in_words, plain, visible
from weir.up.status import Status

__all__ = ["StatusDisplay"]

_PLAIN_SECONDS: Final = 10.0
_K: Final = 20
_GONE: Final = (OSError, SystemExit)
"""Errors of a closed terminal or pipe (rich exits then), which must not end the processes."""


class StatusDisplay:
    """Shows the status and important log lines of the processes on one console."""

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
        """Remove the live table; plain lines can still be printed."""
        if self._live:
            self._live.stop()

    def say(self, name: str, line: str) -> None:
        """Print a line with the name of its process in front."""
        text = Text(f"{name:>8} | ", style="dim")
        text.append(visible(line), style="default")
        with contextlib.suppress(*_GONE):
            self._console.print(text, soft_wrap=True)

    def show(self, status: Status) -> None:
        """Show the newest status; report each new read problem once."""
        for part, problem in status.problems.items():
            if self._problems.get(part) != problem:
                self.say("weir", f"cannot read: {problem}")
        self._problems = status.problems
        if self._live:
            with contextlib.suppress(*_GONE):
                self._live.update(_panel(status))
        elif time.monotonic() - self._printed >= _PLAIN_SECONDS:
            self._printed = time.monotonic()
            facts = "; ".join(f"{name}: {value}" for name, value in _facts(status))
            self.say("weir", f"{status.seconds:.0f} s; {facts}")


def _panel(status: Status) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2))
    if status.replayed is not None:
        table.add_row(Text("replay", style="bold"), ProgressBar(total=1.0, completed=status.replayed, width=60))
    for name, value in _facts(status):
        table.add_row(Text(name, style="bold"), plain(value))
    return Group(Text(f"weir up, {status.seconds:.0f} s", style="bold cyan"), table)


def _facts(status: Status) -> list[tuple[str, str]]:
    replayed = "" if status.replayed is None else f", {status.replayed:.0%} of the replay done"
    served = status.served
    age = "" if status.newest_event_age is None else f", newest event {in_words(status.newest_event_age)} old"
    counts = status.counts
    counted = f"{status.dead} dead, {counts.duplicates:,} duplicates, {counts.late:,} late"
    held = [("newest bundle", status.held)] if status.held else []
    unread = [("unreadable", ", ".join(status.problems))] if status.problems else []
    return [
        ("log", f"{counts.events:,} events in {status.windows} panes, {counted}{replayed}"),
        ("trained", f"{status.trained_sequence + 1} panes"),
        (
            "served",
            f"{served.bundle_version} with {served.items:,} items{age}"
            if served
            else f"nothing yet: waiting for {_awaited(status)}",
        ),
        ("recall", _recalls(status)),
        *held,
        *unread,
    ]


def _awaited(status: Status) -> str:
    """Return the next step until a bundle is served."""
    if status.windows == 0:
        first = f"the first events, which are answered after {in_words(status.longest_seconds)} at most"
        return first if status.replayed is None else "the first window to end"
    if status.trained_sequence < 0:
        return "the trainer to make the first bundle"
    return "the server to load the first bundle"


def _recalls(status: Status) -> str:
    values = {kind: mean_recall(status.recalls, kind, _K) for kind in ("model", "served", "index", "popularity")}
    known = [f"{kind} {value:.3f}" for kind, value in values.items() if value is not None]
    return f"@{_K} {', '.join(known)}" if known else "not measured yet"
