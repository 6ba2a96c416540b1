"""The decayed count of each table row's item, and log Q, at a cost that follows the rows of a window, not the table.

A row's count is read from the sketch when its item occurs, and kept in units that fade by themselves: a count is its
units times a scale, one number for all rows. What a sketch says is an upper bound, and reading it again later could
only add what other items left in the same cells since; so the count read last is the closest one.

Ranks share the units (`weir.trainer.log_q.units`). The sum of all counts is the same on all ranks, and for any number
of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import ItemKeys
from weir.sketches import FrequencyView
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.table import ItemTable, RowChanges
from weir.trainer.log_q.fetched import FetchedCounts
from weir.trainer.log_q.floored_sum import FlooredSum
from weir.trainer.log_q.units import Ints, Line, Units
from weir.trainer.ranks.workers import Workers

__all__ = ["QUESTIONS", "LogQ", "RowCounts"]

_FLOOR: Final = 0.5
"""Events that each item of the table has at least, for log Q."""
_HIGHEST: Final = -1e-6
"""log Q is below 0 for a single item too."""
_UNITS_LAST: Final = 64
"""Half-lives after which units are made again: long before numbers get too small."""
_CHOICE_LASTS: Final = 1 / 16
"""Share of the shortest half-life after which all items' half-lives are chosen again."""
_AT_ONCE: Final = 1 << 16
"""Rows whose counts are read from the sketch at a time."""

_COUNTS: Final = "counts"

QUESTIONS: Final = frozenset({_COUNTS, *get_args(Line)})
"""What rank 0 asks the others for; see `Workers.first`."""

Floats = npt.NDArray[np.float64]


class RowCounts:
    """Counts of rows, by ``counts[rows]``; all ranks call `follow` together after each window.

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
    workers
        The ranks that share the table; a single one if None.
    """

    def __init__(self, view: FrequencyView, table: ItemTable, weight: Tensor, workers: Workers | None = None) -> None:
        self._view, self._table, self._dtype = view, table, weight.dtype
        self._workers = workers or Workers()
        self.kept = Units(len(view.half_lives), weight.device, self._workers)
        self.read_all()

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of the items of rows, as events of the longest half-life, float64 of the rows' shape.

        Called as `Embeddings.fetch`.
        """
        if self._workers.world_size == 1:
            return self.at(rows)
        self._workers.ask(_COUNTS)
        return self._exchanged(rows)

    def at(self, lines: Tensor) -> Tensor:
        """Return the counts of this rank's lines, of their shape."""
        units, chosen = self.kept.units, self.kept.chosen
        if len(self._scales) == 1:
            return units[lines, 0] * self._scales[0]
        number = chosen[lines].long()
        return units[lines].gather(-1, number[..., None])[..., 0] * self._scales[number]

    def answer(self, question: str) -> None:
        """Take part in what rank 0 does alone, one of `QUESTIONS`; for `Workers.first`."""
        if question == _COUNTS:
            self._exchanged(torch.empty(0, dtype=torch.int64, device=self.kept.units.device))
        else:
            self.kept.answer(question)

    def _exchanged(self, rows: Tensor) -> Tensor:
        distinct, number = torch.unique(rows, return_inverse=True)
        route = self.kept.route(distinct)
        [found] = route.answered(self.at(route.asked))
        return found[number]

    @property
    def log_total(self) -> float:
        """The logarithm of the sum of all items' counts, each raised to the floor: log Q is normalised by it."""
        return self._log_total

    def log_q(self, counts: Tensor) -> Tensor:
        """Return the log-probability of items with some counts among all items of the table, of the counts' shape.

        It is normalised over them, not over all events: the trainer draws only items of its table, and with the mass of
        other items in it, the correction "improved" would weight rows wrongly. Rows that no item owns are never drawn;
        any value below 0 does for them.
        """
        logs = counts.clamp(min=_FLOOR).log() - self._log_total
        return logs.clamp(max=_HIGHEST).to(self._dtype)

    def follow(self, rows: TableRows, estimates: Floats, changes: RowChanges) -> TableRows:
        """Take over a window that the view has taken in; return the rows that changed without occurring in it.

        These are rows of this rank, ascending.

        Parameters
        ----------
        rows
            Those of the window's items, each once, (n,).
        estimates
            What `FrequencyView.estimates` says of them, (n, half-lives).
        changes
            The rows that the window's items took, which are among `rows`, and those that were taken from others.
        """
        self.kept.grow(self._table.capacity)
        (evicted, _), (admitted, _) = map(self.kept.own, (changes.evicted, changes.admitted))
        self._count(evicted, -1)
        self.kept.units[evicted] = 0
        self.kept.chosen[evicted] = 0
        self._count(admitted, 1)
        changed = self._renew_units()
        self._set(rows, estimates)
        changed = TableRows(np.union1d(changed, self._choose_again()))
        self._normalise()
        return changed

    def read_all(self) -> None:
        """Read the counts of all rows from the sketch, as where they are not known yet; all ranks call it together."""
        self.kept.clear(self._table.capacity)
        self._since_ms = self._chosen_ms = self._view.time_ms
        live = self._table.live
        for first in range(0, len(live), _AT_ONCE):
            rows = TableRows(live[first : first + _AT_ONCE])
            keys, (here, own) = self._table.keys_of(rows), self.kept.own(rows)
            self._put(here, self._view.estimates(ItemKeys(keys[own])))
        self.recount()

    def recount(self) -> None:
        """Sum up the counts of all rows; all ranks call it together."""
        self._sum_up()
        self._normalise()

    def state_dict(self) -> dict[str, Tensor]:
        """Return units, choices and times, for the checkpoint; of the rows of this rank."""
        return {line: self.kept.of(line) for line in self.kept.stored} | {"times": self._times}

    def state_of(self, rows: TableRows) -> dict[str, Tensor]:
        """Return the same with the lines of some rows (n,), distinct, of all ranks; called as `Embeddings.fetch`."""
        return {line: self.kept.fetch(rows, line) for line in self.kept.stored} | {"times": self._times}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` returned, of the same places; `recount` is still to be called."""
        self.kept.load(self._table.capacity, state)
        self._since_ms, self._chosen_ms = state["times"].tolist()

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_of` returned, of rows (n,) of this rank; `recount` is still to be called."""
        self.kept.load_rows(rows, state)
        self._since_ms, self._chosen_ms = state["times"].tolist()

    @property
    def _times(self) -> Tensor:
        return torch.tensor([self._since_ms, self._chosen_ms])

    def _fading(self) -> Floats:
        """Return what units are worth now under each half-life, (half-lives,)."""
        passed = (self._view.time_ms - self._since_ms) / 1000
        return np.array([0.5 ** (passed / life) for life in self._view.half_lives])

    def _set(self, rows: TableRows, estimates: Floats) -> None:
        """Set the counts of rows that items own, (n,), and choose their half-lives."""
        here, own = self.kept.own(rows)
        self._count(here, -1)
        self._put(here, estimates[own])
        self._count(here, 1)

    def _put(self, lines: Ints, estimates: Floats) -> None:
        units, chosen = self.kept.units, self.kept.chosen
        units[lines] = torch.from_numpy(estimates / self._fading()).to(units.device)
        chosen[lines] = torch.from_numpy(self._view.choose(estimates)).to(chosen.device)

    def _count(self, lines: Ints, sign: int) -> None:
        """Add lines (n,) to the sums, or take them away."""
        units, chosen = self.kept.units[lines].cpu().numpy(), self.kept.chosen[lines].cpu().numpy()
        for number, held in enumerate(self._sums):
            values = units[chosen == number, number]
            held.add(values) if sign > 0 else held.remove(values)

    def _sum_up(self) -> None:
        """Sum up the counts of this rank's rows."""
        self._sums = [FlooredSum() for _ in self._view.half_lives]
        _, lines = self.kept.live(self._table.in_use)
        self._count(lines, 1)

    def _renew_units(self) -> TableRows:
        """Let units be counts again if that is long ago, and return the rows this changes."""
        if self._view.time_ms - self._since_ms <= 1000 * _UNITS_LAST * self._view.half_lives[0]:
            return no_rows()
        self.kept.units *= torch.from_numpy(self._fading()).to(self.kept.units.device)
        self._since_ms = self._view.time_ms
        self._sum_up()
        rows, _ = self.kept.live(self._table.in_use)
        return rows

    def _choose_again(self) -> TableRows:
        """Choose every row's half-life again if that is long ago, and return the rows this changes."""
        if self._view.time_ms - self._chosen_ms < 1000 * _CHOICE_LASTS * self._view.half_lives[0]:
            return no_rows()
        self._chosen_ms = self._view.time_ms
        if len(self._view.half_lives) == 1:
            return no_rows()
        live, lines = self.kept.live(self._table.in_use)
        chosen = self._view.choose(self.kept.units[lines].cpu().numpy() * self._fading())
        rows = TableRows(live[chosen != self.kept.chosen[lines].cpu().numpy()])
        self.kept.chosen[lines] = torch.from_numpy(chosen).to(self.kept.chosen.device)
        self._sum_up()
        return rows

    def _normalise(self) -> None:
        scales = self._fading() * self._view.to_longest
        self._scales = torch.from_numpy(scales).to(self.kept.units.device)
        sums = map(self._of_all, self._sums)
        total = sum(held.total(float(scale), _FLOOR) for held, scale in zip(sums, scales, strict=True))
        self._log_total = float(np.log(total)) if total else 0.0

    def _of_all(self, held: FlooredSum) -> FlooredSum:
        """Return the sum over all ranks: since a row was counted, it may have moved to another one."""
        if self._workers.world_size == 1:
            return held
        return FlooredSum.of(self._workers.collect(torch.from_numpy(held.bins)).numpy())


@dataclass(frozen=True, eq=False)
class LogQ:
    """Log Q of table rows, by ``log_q[rows]``: what `of` (`RowCounts.log_q`) makes of the `counts` asked for."""

    counts: RowCounts | FetchedCounts
    of: Callable[[Tensor], Tensor]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return log Q of rows, of their shape; called as counts are."""
        return self.of(self.counts[rows])
