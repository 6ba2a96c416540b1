"""Progress: a bar on a terminal, nothing elsewhere, where the stages' log lines show it."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from weir.text import visible

__all__ = ["Bar"]


class Bar:
    """One bar followed by a text.

    Parameters
    ----------
    console
        Where to draw; nothing is drawn unless it is a terminal.
    title
        Text in front of the bar.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None, text="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int | None, total: int | None, text: str) -> None:
        """Show how much is done; `total` None: unknown."""
        self._progress.update(self._task, completed=done, total=total, text=visible(text))
