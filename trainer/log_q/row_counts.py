"""The decayed count of each table row's item, and log Q, at a cost that follows the rows of a window, not the table.

A row's count is read from the sketch when its item occurs, and kept in units that fade by themselves: a count is its
units times a scale, one number for all rows. What a sketch says is an upper bound, and reading it again later could
only add what other items left in the same cells since; so the count read last is the closest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sketches import FrequencyView
from trainer.items.rows import TableRows, no_rows
from trainer.items.table import ItemTable, RowChanges
from trainer.log_q.floored_sum import FlooredSum

__all__ = ["LogQ", "RowCounts"]

_FLOOR: Final = 0.5
"""Events that each item of the table has at least, for log Q."""
_HIGHEST: Final = -1e-6
"""log Q is below 0 for a single item too."""
_UNITS_LAST: Final = 64
"""Half-lives after which units are made again: long before numbers get too small."""
_CHOICE_LASTS: Final = 1 / 16
"""Share of the shortest half-life after which all items' half-lives are chosen again."""

Floats = npt.NDArray[np.float64]


class RowCounts:
    """Counts of rows, by ``counts[rows]``; call `follow` after each window.

    With several half-lives a row has units for each, and a choice of one (`FrequencyView.choose`), which is made when
    its item occurs, and for all rows when a sixteenth of the shortest half-life has passed.

    Parameters
    ----------
    view
        The sketches that counts are read from.
    table
        Says which rows are items, and of which keys.
    weight
        Embeddings, (n, d): log Q has their type and is where they are.
    """

    def __init__(self, view: FrequencyView, table: ItemTable, weight: Tensor) -> None:
        self._view, self._table, self._dtype = view, table, weight.dtype
        shape = table.capacity, len(view.half_lives)
        self._units = torch.zeros(shape, dtype=torch.float64, device=weight.device)
        self._chosen = torch.zeros(table.capacity, dtype=torch.int8, device=weight.device)
        self.read_all()

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of the items of rows, as events of the longest half-life, float64 of the rows' shape."""
        if len(self._scales) == 1:
            return self._units[rows, 0] * self._scales[0]
        chosen = self._chosen[rows].long()
        return self._units[rows].gather(-1, chosen[..., None])[..., 0] * self._scales[chosen]

    @property
    def log_total(self) -> float:
        """The logarithm of the sum of all items' counts, each raised to the floor: log Q is normalised by it."""
        return self._log_total

    def log_q(self, rows: Tensor) -> Tensor:
        """Return the log-probability of the items of rows among all items of the table, of the rows' shape.

        It is normalised over them, not over all events: the trainer draws only items of its table, and with the mass of
        other items in it, the correction "improved" would weight rows wrongly. Rows that no item owns are never drawn;
        any value below 0 does for them.
        """
        logs = self[rows].clamp(min=_FLOOR).log() - self._log_total
        return logs.clamp(max=_HIGHEST).to(self._dtype)

    def follow(self, rows: TableRows, estimates: Floats, changes: RowChanges) -> TableRows:
        """Take over a window that the view has taken in; return the rows that changed without occurring in it.

        Parameters
        ----------
        rows
            Those of the window's items, each once, (n,).
        estimates
            What `FrequencyView.estimates` says of them, (n, half-lives).
        changes
            The rows that the window's items took, which are among `rows`, and those that were taken from others.
        """
        self.grow(self._table.capacity)
        self._count(changes.evicted, -1)
        self._units[changes.evicted] = 0
        self._chosen[changes.evicted] = 0
        self._count(changes.admitted, 1)
        changed = self._renew_units()
        self._set(rows, estimates)
        changed = TableRows(np.union1d(changed, self._choose_again()))
        self._normalise()
        return changed

    def grow(self, capacity: int) -> None:
        """Append rows without counts, up to `capacity`."""
        if missing := capacity - len(self._units):
            self._units = functional.pad(self._units, (0, 0, 0, missing))
            self._chosen = functional.pad(self._chosen, (0, missing))

    def read_all(self) -> None:
        """Read the counts of all rows from the sketch, as where they are not known yet."""
        live, capacity = self._table.live, self._table.capacity
        self._units = self._units.new_zeros(capacity, self._units.shape[1])
        self._chosen = self._chosen.new_zeros(capacity)
        self._since_ms = self._chosen_ms = self._view.time_ms
        estimates = self._view.estimates(self._table.keys_of(live))
        self._units[live] = torch.from_numpy(estimates).to(self._units.device)
        self._chosen[live] = torch.from_numpy(self._view.choose(estimates)).to(self._chosen.device)
        self.recount()

    def recount(self) -> None:
        """Sum up the counts of all rows."""
        self._sums = [FlooredSum() for _ in self._view.half_lives]
        self._count(self._table.live, 1)
        self._normalise()

    def state_dict(self) -> dict[str, Tensor]:
        """Return units, choices and times, for the checkpoint."""
        return self._state(self._units, self._chosen)

    def state_of(self, rows: TableRows) -> dict[str, Tensor]:
        """Return the same with the lines of some rows (n,)."""
        return self._state(self._units[rows], self._chosen[rows])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned; `recount` is still to be called."""
        self._units = state["units"].to(self._units.device)
        self._chosen = self._loaded_choice(state, len(self._units))
        self._since_ms, self._chosen_ms = state["times"].tolist()

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_of` returned; `recount` is still to be called."""
        self._units[rows] = state["units"].to(self._units.device)
        self._chosen[rows] = self._loaded_choice(state, len(rows))
        self._since_ms, self._chosen_ms = state["times"].tolist()

    def _state(self, units: Tensor, chosen: Tensor) -> dict[str, Tensor]:
        times = torch.tensor([self._since_ms, self._chosen_ms])
        several = len(self._view.half_lives) > 1
        return {"units": units, "times": times} | ({"chosen": chosen} if several else {})

    def _loaded_choice(self, state: Mapping[str, Tensor], count: int) -> Tensor:
        return state["chosen"].to(self._chosen.device) if "chosen" in state else self._chosen.new_zeros(count)

    def _fading(self) -> Floats:
        """Return what units are worth now under each half-life, (half-lives,)."""
        passed = (self._view.time_ms - self._since_ms) / 1000
        return np.array([0.5 ** (passed / life) for life in self._view.half_lives])

    def _set(self, rows: TableRows, estimates: Floats) -> None:
        """Set the counts of rows that items own, (n,), and choose their half-lives."""
        self._count(rows, -1)
        self._units[rows] = torch.from_numpy(estimates / self._fading()).to(self._units.device)
        self._chosen[rows] = torch.from_numpy(self._view.choose(estimates)).to(self._chosen.device)
        self._count(rows, 1)

    def _count(self, rows: TableRows, sign: int) -> None:
        """Add rows (n,) to the sums, or take them away."""
        units, chosen = self._units[rows].cpu().numpy(), self._chosen[rows].cpu().numpy()
        for number, held in enumerate(self._sums):
            values = units[chosen == number, number]
            held.add(values) if sign > 0 else held.remove(values)

    def _renew_units(self) -> TableRows:
        """Let units be counts again if that is long ago, and return the rows this changes."""
        if self._view.time_ms - self._since_ms <= 1000 * _UNITS_LAST * self._view.half_lives[0]:
            return no_rows()
        self._units *= torch.from_numpy(self._fading()).to(self._units.device)
        self._since_ms = self._view.time_ms
        self.recount()
        return TableRows(self._table.live.copy())

    def _choose_again(self) -> TableRows:
        """Choose every row's half-life again if that is long ago, and return the rows this changes."""
        if self._view.time_ms - self._chosen_ms < 1000 * _CHOICE_LASTS * self._view.half_lives[0]:
            return no_rows()
        self._chosen_ms = self._view.time_ms
        if len(self._view.half_lives) == 1:
            return no_rows()
        live = self._table.live
        chosen = self._view.choose(self._units[live].cpu().numpy() * self._fading())
        rows = TableRows(live[chosen != self._chosen[live].cpu().numpy()])
        self._chosen[live] = torch.from_numpy(chosen).to(self._chosen.device)
        self.recount()
        return rows

    def _normalise(self) -> None:
        scales = self._fading() * self._view.to_longest
        self._scales = torch.from_numpy(scales).to(self._units.device)
        total = sum(held.total(float(scale), _FLOOR) for held, scale in zip(self._sums, scales, strict=True))
        self._log_total = float(np.log(total)) if total else 0.0


@dataclass(frozen=True, eq=False)
class LogQ:
    """Log Q of table rows, by ``log_q[rows]``: computed for those that are asked for."""

    counts: RowCounts

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return `RowCounts.log_q` of rows."""
        return self.counts.log_q(rows)
