"""Progress: a bar on a terminal; elsewhere nothing, where the stages' log lines show it, or a line now and then."""

import time
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from weir.text import plain, visible

__all__ = ["PLAIN_SECONDS", "Bar"]

PLAIN_SECONDS: Final = 10.0
"""Between lines that stand for a bar."""


class Bar(Progress):
    """One bar followed by a text.

    Parameters
    ----------
    console
        Where to draw; without a terminal nothing is drawn.
    title
        Text in front of the bar.
    plain_seconds
        Between lines of text without a terminal; None: there are none.
    """

    def __init__(self, console: Console, title: str, *, plain_seconds: float | None = None) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            # A column as wide as its text would leave out one of marks that have no width of their own.
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, min_width=1)),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.add_task(title, total=None, text="")
        self._title = title
        self._plain_seconds = None if console.is_terminal else plain_seconds
        self._printed = time.monotonic()

    def show(self, done: int | None, total: int | None, text: str) -> None:
        """Show how much is done; `total` None: unknown."""
        self.update(self._task, completed=done, total=total, text=visible(text))
        if self._plain_seconds is not None and time.monotonic() - self._printed >= self._plain_seconds:
            self._printed = time.monotonic()
            self.console.print(plain(f"{self._title}: {text}"), soft_wrap=True)
