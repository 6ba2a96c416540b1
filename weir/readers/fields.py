"""What readers of all formats say and do about the fields of rows."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from weir.readers.blocks import Int64

__all__ = ["absent", "without_blanks"]

_NAMED: Final = 12
_LONGEST: Final = 40


def absent(field: str, names: Sequence[str], where: str) -> str:
    """Return what to say where a field is absent: the names that are there, and the setting to change."""
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names[:_NAMED]]
    listed = ", ".join([*shown, "..."] if len(names) > _NAMED else shown) or "none"
    return f"the {where} has {listed}: name the right one with pipeline.columns.{field}"


def without_blanks(lines: list[bytes], positions: Int64) -> tuple[list[bytes], Int64]:
    """Return the lines that hold something, and their positions."""
    if all(lines) and not any(map(bytes.isspace, lines)):
        return lines, positions
    kept = np.array([bool(line) and not line.isspace() for line in lines], np.bool_)
    return [line for line, keep in zip(lines, kept, strict=True) if keep], positions[kept]
