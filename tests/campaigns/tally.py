"""What the campaigns of one run have counted; the session's summary prints it as a table."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """The faults of one kind, and what became of them; `seconds` is wall time."""

    faults: int = 0
    refused: int = 0
    without_effect: int = 0
    silent: list[str] = field(default_factory=list)
    seconds: float = 0.0


ROWS: dict[str, Row] = {}

NOTES: list[str] = []
"""What else a campaign has to tell, printed below the table."""


@contextmanager
def counting(kind: str) -> Iterator[Row]:
    """Count faults of one kind, and their time."""
    row, started = ROWS.setdefault(kind, Row()), time.perf_counter()
    try:
        yield row
    finally:
        row.seconds += time.perf_counter() - started


def packed() -> dict[str, Any]:
    """Return rows and notes as plain values, which can be sent to another process."""
    return {"rows": {kind: asdict(row) for kind, row in ROWS.items()}, "notes": NOTES}


def add(found: dict[str, Any]) -> None:
    """Add what another process has packed."""
    for kind, values in found.get("rows", {}).items():
        row, other = ROWS.setdefault(kind, Row()), Row(**values)
        for name in values:
            setattr(row, name, getattr(row, name) + getattr(other, name))
    NOTES.extend(found.get("notes", []))


def table() -> list[str]:
    """Return the lines of the summary."""
    head = ("kind", "faults", "refused", "without effect", "silent", "seconds")
    rows = [
        (kind, str(row.faults), str(row.refused), str(row.without_effect), str(len(row.silent)), f"{row.seconds:.0f}")
        for kind, row in ROWS.items()
    ]
    columns = list(zip(*[head, *rows], strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in [head, *rows]
    ]  # fmt: skip
