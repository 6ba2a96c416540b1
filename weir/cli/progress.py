"""Progress: a bar on a terminal, nothing elsewhere, where the stages' log lines show it."""

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from weir.text import visible

__all__ = ["Bar"]


class Bar(Progress):
    """One bar followed by a text.

    Parameters
    ----------
    console
        Where to draw; nothing is drawn unless it is a terminal.
    title
        Text in front of the bar.
    """

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.add_task(title, total=None, text="")

    def show(self, done: int | None, total: int | None, text: str) -> None:
        """Show how much is done; `total` None: unknown."""
        self.update(self._task, completed=done, total=total, text=visible(text))
