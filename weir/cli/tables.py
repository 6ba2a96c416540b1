"""How tables look on a terminal."""

# ruff: noqa: PLC0415 - imports wait until a command runs

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from weir.session import Session

__all__ = ["minute", "print_facts", "print_table"]

_NUMBERS: Final = {
    *("commit", "pane", "events", "negative", "duplicate", "late", "items"),
    *("recall@20", "rank", "count", "estimate", "share", "before", "after", "change"),
    *("lists", "clicked", "click-through", "coverage", "popular only", "position", "shown"),
    *("windows", "recall", "freshest", "difference", "95 %", "up to", "windows of"),
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


def print_facts(session: Session, facts: Mapping[str, object]) -> None:
    """Print facts by name, one a line."""
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
