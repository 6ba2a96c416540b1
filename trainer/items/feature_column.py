"""One item feature, as a column over this rank's shard of the embedding rows."""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["NEVER", "Column", "Line"]

NEVER: Final = torch.iinfo(torch.int64).min

Line = Literal["values", "told_ms"]
"""Arrays of a column, by their names in a checkpoint."""


@dataclass
class Column:
    """The `values` (lines, width) of this rank, and the event time of the window that set a line, `told_ms` (lines,).

    Values are left-aligned in a line; the rest holds `unknown`.
    """

    unknown: int | float
    values: Tensor
    told_ms: Tensor

    @classmethod
    def empty(cls, lines: int, dtype: torch.dtype, device: torch.device) -> "Column":
        """Return a column of `lines` empty rows."""
        unknown = torch.nan if dtype.is_floating_point else -1
        values = torch.full((lines, 1), unknown, dtype=dtype, device=device)
        return cls(unknown, values, torch.full((lines,), NEVER, device=device))

    def of(self, line: Line) -> Tensor:
        """Return the array of that name, (lines, ...)."""
        return self.values if line == "values" else self.told_ms

    def grow(self, lines: int) -> None:
        """Append empty rows up to `lines`."""
        missing = lines - len(self.values)
        self.values = functional.pad(self.values, (0, 0, 0, missing), value=self.unknown)
        self.told_ms = functional.pad(self.told_ms, (0, missing), value=NEVER)

    def widen(self, width: int) -> None:
        """Make room for `width` values in each row."""
        self.values = functional.pad(self.values, (0, max(width - self.values.shape[1], 0)), value=self.unknown)

    def forget(self, lines: Tensor) -> None:
        """Clear lines (n,)."""
        self.values[lines], self.told_ms[lines] = self.unknown, NEVER

    def set(self, lines: Tensor, values: Tensor, event_ms: int) -> None:
        """Set distinct lines (n,) to values (n, w), except lines with newer values; call `widen` to w before."""
        new = self.told_ms[lines] <= event_ms
        self.forget(lines[new])
        self.values[lines[new], : values.shape[1]] = values[new]
        self.told_ms[lines[new]] = event_ms
