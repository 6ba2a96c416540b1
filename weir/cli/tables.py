"""How tables look on a terminal."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from datetime import UTC, datetime
from typing import Final

from weir.session import Session

__all__ = ["minute", "print_table"]

_NUMBERS: Final = {
    *("commit", "pane", "events", "negative", "duplicate", "late", "items"),
    *("recall@20", "rank", "count", "estimate", "share", "before", "after", "change"),
}
"""Right-aligned columns."""

_LONG: Final = {"item", "version"}
"""Columns that may exceed the width of the terminal."""


def print_table(session: Session, title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print rows of text under a title, verbatim; only items and versions may be broken into lines."""
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


def minute(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a moment, in seconds since 1970, as text (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
