"""Item embeddings and their optimiser, which touches only the rows of a batch.

Row-wise Adagrad keeps one number per row, the sum of the mean squared gradients, and moves the row by
``learning_rate * gradient / sqrt(sum)``: Duchi et al., "Adaptive Subgradient Methods", JMLR 2011, with the
diagonal shared within a row. Dense Adam over the table would cost more than the rest of a step.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainer.items.rows import PADDING, SHARED, TableRows, TouchedRows

__all__ = ["Embeddings"]

_EPSILON: Final = 1e-10


class Embeddings:
    """The `weight` (capacity, dimension) of a table's rows and the `squares` (capacity,) of their gradients.

    `touched` are the rows of which either has changed.

    Parameters
    ----------
    weight
        Initial rows; row 0 is padding and must be zeros.
    """

    def __init__(self, weight: Tensor, squares: Tensor | None = None) -> None:
        self.weight = weight
        self.squares = weight.new_zeros(len(weight)) if squares is None else squares
        self.touched = TouchedRows(len(weight))

    @classmethod
    def fresh(
        cls, capacity: int, dimension: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype
    ) -> "Embeddings":
        """Return a table whose shared row is random and whose other rows are zeros until an item gets them."""
        table = cls(torch.zeros(capacity, dimension, device=device, dtype=dtype))
        table.initialise(TableRows(np.array([SHARED])), generator)
        return table

    def grow(self, capacity: int) -> None:
        """Append zero rows up to `capacity`."""
        missing = capacity - len(self.weight)
        if not missing:
            return
        self.weight = functional.pad(self.weight, (0, 0, 0, missing))
        self.squares = functional.pad(self.squares, (0, missing))
        self.touched.grow(capacity)

    def initialise(self, rows: TableRows, generator: torch.Generator) -> None:
        """Draw new vectors of expected length 1 for rows and reset the sums of their gradients."""
        shape = (len(rows), self.weight.shape[1])
        values = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5
        index = torch.from_numpy(rows).to(self.weight.device)
        self.weight[index] = values.to(self.weight)
        self.squares[index] = 0
        self.touched.mark(rows)

    def state_dict(self) -> dict[str, Tensor]:
        """Return rows and sums, for the checkpoint."""
        return {"weight": self.weight, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` describes, on the device in use."""
        self.weight, self.squares = (state[name].to(self.weight.device) for name in ("weight", "squares"))
        self.touched = TouchedRows(len(self.weight))

    def state_of(self, rows: TableRows) -> dict[str, Tensor]:
        """Return some rows (n,) and their sums."""
        index = torch.from_numpy(rows).to(self.weight.device)
        return {"weight": self.weight[index], "squares": self.squares[index]}

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Take over the rows (n,) that `state_of` describes."""
        index = torch.from_numpy(rows).to(self.weight.device)
        self.weight[index], self.squares[index] = (state[name].to(self.weight) for name in ("weight", "squares"))

    def adagrad_step(self, rows: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Move distinct `rows` (n,) against their `gradient` (n, dimension); padding stays zeros."""
        gradient = gradient.masked_fill((rows == PADDING)[:, None], 0)
        squares = self.squares[rows] + gradient.square().mean(1)
        self.squares[rows] = squares
        self.weight[rows] -= learning_rate * gradient / (squares.sqrt() + _EPSILON)[:, None]
        self.touched.mark(rows.cpu().numpy())
