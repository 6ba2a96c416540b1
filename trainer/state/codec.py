"""Common interface of all parts of a checkpoint: each returns named arrays, and loads them again.

Parts follow the protocol of `torch.nn.Module`. A checkpoint stores all arrays side by side as ``<part>.<name>``.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.rows import TableRows

__all__ = ["ROWS", "Delta", "Stateful", "StatefulRows", "array_of", "flatten", "group"]

ROWS: Final = "rows"
"""First tensor of a delta: the table rows that it stores."""

Arrays = Mapping[str, Tensor | npt.NDArray[Any]]


class Stateful(Protocol):
    """A part of the state with named arrays."""

    def state_dict(self) -> Arrays:
        """Return the part's arrays; empty if it has none. They may be the part's own."""
        ...

    def load_state_dict(self, state: dict[str, Tensor], /) -> object:
        """Load the result of `state_dict`."""
        ...


@runtime_checkable
class StatefulRows(Stateful, Protocol):
    """A part of the state whose arrays have a line per table row."""

    def state_of(self, rows: TableRows, /) -> Arrays:
        """Return the result of `state_dict` for some rows (n,) only."""
        ...

    def load_rows(self, rows: TableRows, state: dict[str, Tensor], /) -> None:
        """Load the result of `state_of` for rows of this rank; all other lines stay."""
        ...


class Delta(NamedTuple):
    """A delta's `tensors` by flat name, for the rows `listed` (n,); some parts only have this rank's rows, in `own`."""

    tensors: dict[str, Tensor]
    listed: TableRows
    own: Mapping[str, TableRows]

    def rows(self, part: str) -> TableRows:
        """Return the rows of a part's tensors."""
        return self.own.get(part, self.listed)


def flatten(parts: Mapping[str, Stateful], rows: TableRows | None = None) -> dict[str, Tensor]:
    """Return the arrays of all parts as tensors, in order, as ``<part>.<name>``; at some `rows` only, if given."""
    return {
        f"{part}.{name}": torch.as_tensor(value)
        for part, one in parts.items()
        for name, value in _arrays(one, rows).items()
    }


def array_of(value: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; floats as 32-bit numbers."""
    found: npt.NDArray[Any] = (value.float() if value.is_floating_point() else value).detach().cpu().numpy()
    return found


def _arrays(part: Stateful, rows: TableRows | None) -> Arrays:
    return part.state_of(rows) if rows is not None and isinstance(part, StatefulRows) else part.state_dict()


def group(flat: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a flat mapping by part, then by name."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts
