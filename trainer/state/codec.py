"""One codec for all parts of a checkpoint: each part gives named arrays, and takes them back.

Parts follow the protocol of `torch.nn.Module`. In a checkpoint all arrays lie side by side as ``<part>.<name>``.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from torch import Tensor

from weir.trainer.items.rows import TableRows

__all__ = ["ROWS", "Delta", "Stateful", "StatefulRows", "array_of", "flatten", "group"]

ROWS: Final = "rows"
"""The first tensor of a delta: the table rows that it has lines for."""

Arrays = Mapping[str, Tensor | npt.NDArray[Any]]


class Stateful(Protocol):
    """A part of the state."""

    def state_dict(self) -> Arrays:
        """Return everything the part remembers; empty if nothing. The arrays may be the part's own."""
        ...

    def load_state_dict(self, state: dict[str, Tensor], /) -> object:
        """Take over what `state_dict` returned."""
        ...


@runtime_checkable
class StatefulRows(Stateful, Protocol):
    """A part of the state with arrays that have a line for each table row."""

    def state_of(self, rows: TableRows, /) -> Arrays:
        """Return what `state_dict` does, with the lines of some rows (n,) instead of all."""
        ...

    def load_rows(self, rows: TableRows, state: dict[str, Tensor], /) -> None:
        """Take over what `state_of` returned, of rows that this rank keeps; the lines of all others stay."""
        ...


class Delta(NamedTuple):
    """A delta's `tensors` by flat name, with lines for the rows `listed` (n,), but of some parts only for the `own`."""

    tensors: dict[str, Tensor]
    listed: TableRows
    own: Mapping[str, TableRows]

    def rows(self, part: str) -> TableRows:
        """Return the rows that a part's tensors have lines for."""
        return self.own.get(part, self.listed)


def flatten(parts: Mapping[str, Stateful], rows: TableRows | None = None) -> dict[str, Tensor]:
    """Return the arrays of all parts as tensors, in order, by ``<part>.<name>``; with the lines of some `rows` only."""
    return {
        f"{part}.{name}": torch.as_tensor(value)
        for part, one in parts.items()
        for name, value in _arrays(one, rows).items()
    }


def array_of(value: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; of floats, as numbers of 32 bits."""
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
