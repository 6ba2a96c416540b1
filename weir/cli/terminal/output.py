"""Progress bars, tables and settings on a terminal."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from weir.text import as_yaml, plain, visible

if TYPE_CHECKING:
    from pydantic import BaseModel

    from weir.session import Session

__all__ = ["PLAIN_SECONDS", "Bar", "commented", "minute", "print_facts", "print_table"]


PLAIN_SECONDS: Final = 10.0
"""Seconds between the lines that replace a bar."""


class Bar(Progress):
    """A progress bar followed by a text.

    Parameters
    ----------
    console
        Where to draw; without a terminal nothing is drawn.
    title
        Text in front of the bar.
    plain_seconds
        Seconds between lines of text if there is no terminal; None: no lines.
    """

    def __init__(self, console: Console, title: str, *, plain_seconds: float | None = None) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            # A column as wide as its text would drop text of zero-width marks.
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
        """Show progress; `total` is None if unknown."""
        self.update(self._task, completed=done, total=total, text=visible(text))
        if self._plain_seconds is not None and time.monotonic() - self._printed >= self._plain_seconds:
            self._printed = time.monotonic()
            self.console.print(plain(f"{self._title}: {text}"), soft_wrap=True)


# ruff: noqa: PLC0415 - imports wait until a command runs


_NUMBERS: Final = {
    *("commit", "pane", "events", "negative", "duplicate", "late", "items"),
    *("recall@20", "rank", "count", "estimate", "share", "before", "after", "change"),
    *("lists", "clicked", "click-through", "coverage", "popular only", "position", "shown"),
    *("windows", "recall", "freshest", "difference", "95 %", "up to", "windows of"),
}
"""Names of right-aligned columns."""

_LONG: Final = {"item", "version"}
"""Names of columns that may break over lines on a narrow terminal."""


def print_table(session: "Session", title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print rows of text under a title, verbatim; only items and versions may break over lines."""
    from rich.table import Table

    from weir.text import plain

    table = Table(
        title=plain(title), title_justify="left", box=None, header_style="bold", collapse_padding=True, pad_edge=False
    )
    for name in head:
        table.add_column(
            name, justify="right" if name in _NUMBERS else "left", no_wrap=name not in _LONG, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(plain, row))
    session.out.print(table)


def print_facts(session: "Session", facts: Mapping[str, object]) -> None:
    """Print facts, each on a line behind its name."""
    from rich.table import Table

    from weir.text import plain

    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(plain(name.replace("_", " ")), plain(_as_text(value)))
    session.out.print(table)


def _as_text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name} {_as_text(inner)}" for name, inner in value.items()) or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def minute(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a moment, in seconds since 1970, as text (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def commented(model: "BaseModel", indent: int = 0) -> str:
    """Return a model as YAML; each line carries the field's description as a comment."""
    from pydantic import BaseModel

    pad = " " * indent
    text = ""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            text += f"{pad}{name}:\n{commented(value, indent + 2)}"
            continue
        plain = as_yaml(model.model_dump(mode="json", include={name})[name])
        text += f"{pad}{name}: {plain}" + (f"  # {field.description}" if field.description else "") + "\n"
    return text
