"""How tables look on a terminal."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from typing import Final

from weir.cli.session import Session

__all__ = ["print_table"]

_NUMBERS: Final = {
    *("commit", "pane", "events", "negative", "duplicate", "late", "items"),
    *("recall@20", "rank", "count", "estimate", "share", "before", "after", "change"),
}
"""Columns that stand to the right."""


def print_table(session: Session, title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print rows of text under a title; the column "item" alone may be broken into lines."""
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=None, header_style="bold", collapse_padding=True, pad_edge=False
    )
    for name in head:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "item")
    for row in rows:
        table.add_row(*row)
    session.out.print(table)
