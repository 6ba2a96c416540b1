"""Decayed counts of items by table row, log Q from them, and decayed counts of users.

A row's count is read from the sketch when its item occurs, and stored in units that need no decay: a count is the
number of units times a scale shared by all rows. The sketch gives an upper bound; reading it again later could only add
collisions with other items, so the last count read is the most precise.

The units are sharded over ranks (`weir.trainer.log_q.units`). The sum of all counts is the same on all ranks, and for
any number of ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from weir.contracts import ItemKeys, UserKeys
from weir.sketches import DistinctCounter, FrequencyView
from weir.trainer.items.placement import Places
from weir.trainer.items.rows import TableRows, no_rows
from weir.trainer.items.stored import RowLines, SharedLines
from weir.trainer.items.table import ItemTable, RowChanges
from weir.trainer.log_q.floored_sum import FlooredSum
from weir.trainer.log_q.units import Ints, Line, Units
from weir.trainer.ranks.workers import Workers

__all__ = ["QUESTIONS", "FetchedCounts", "LogQ", "RowCounts", "Users", "counted"]


_FLOOR: Final = 0.5
"""Least number of events per item of the table, for log Q."""

_HIGHEST: Final = -1e-6
"""Upper bound of log Q, so that it is below 0 for a single item, too."""

_UNITS_LAST: Final = 64
"""Half-lives after which units are rescaled, long before they underflow or overflow."""

_CHOICE_LASTS: Final = 1 / 16
"""Share of the shortest half-life after which the half-lives of all items are chosen again."""

_AT_ONCE: Final = 1 << 16
"""Rows whose counts are read from the sketch at a time."""

_COUNTS: Final = "counts"

QUESTIONS: Final = frozenset({_COUNTS, *get_args(Line)})
"""Queries of rank 0 to the other ranks; see `Workers.first`."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FetchedCounts:
    """Counts of the fetched rows, by ``counts[rows]``.

    Parameters
    ----------
    places
        Sharding of the rows.
    keys
        `Places.key` of the rows, (n,), ascending.
    values
        Counts of the rows, (n,).
    """

    places: Places
    keys: Tensor
    values: Tensor

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of rows, in their shape."""
        return self.values[torch.searchsorted(self.keys, self.places.key(rows.contiguous()))]


class RowCounts:
    """Decayed counts by row, as ``counts[rows]``; all ranks call `follow` together after each window.

    With several half-lives a row has units for each, and one chosen half-life (`FrequencyView.choose`), updated when
    its item occurs, and for all rows after a sixteenth of the shortest half-life.

    Parameters
    ----------
    view
        The sketches that counts are read from.
    table
        The item table, for the rows in use and their keys.
    weight
        Embeddings, (n, d): log Q has their type and device.
    workers
        The ranks that share the table; a single one if None.
    """

    def __init__(self, view: FrequencyView, table: ItemTable, weight: Tensor, workers: Workers | None = None) -> None:
        self._view, self._table, self._dtype = view, table, weight.dtype
        self._workers = workers or Workers()
        self.kept = Units(len(view.half_lives), weight.device, self._workers)
        self.read_all()

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the counts of rows, in their shape, as events of the longest half-life, float64.

        Collective, or called by rank 0 in `Workers.first`.
        """
        if self._workers.world_size == 1:
            return self.at(rows)
        self._workers.ask(_COUNTS)
        return self._exchanged(rows)

    def at(self, lines: Tensor) -> Tensor:
        """Return the counts at `lines` (positions in this rank's shard), in their shape."""
        units, chosen = self.kept.units, self.kept.chosen
        if len(self._scales) == 1:
            return units[lines, 0] * self._scales[0]
        number = chosen[lines].long()
        return units[lines].gather(-1, number[..., None])[..., 0] * self._scales[number]

    def answer(self, question: str) -> None:
        """Join the collective that rank 0 asks for in `Workers.first` by one of `QUESTIONS`."""
        if question == _COUNTS:
            self._exchanged(torch.empty(0, dtype=torch.int64, device=self.kept.units.device))
        else:
            self.kept.answer(question)

    def _exchanged(self, rows: Tensor) -> Tensor:
        """Return the counts of rows of any rank; collective."""
        distinct, number = torch.unique(rows, return_inverse=True)
        route = self.kept.route(distinct)
        [counts] = route.answered(self.at(route.asked))
        return counts[number]

    @property
    def log_total(self) -> float:
        """Logarithm of the sum of all items' counts, each at least the floor: the normaliser of log Q."""
        return self._log_total

    def log_q(self, counts: Tensor) -> Tensor:
        """Return the log-probability of items among all items of the table, in the shape of their `counts`.

        The probabilities of the table's items sum to 1. Only these items are drawn; with the mass of other items
        included, the correction "improved" would weight rows wrongly. Free rows, which are never drawn, get some value
        below 0.
        """
        logs = counts.clamp(min=_FLOOR).log() - self._log_total
        return logs.clamp(max=_HIGHEST).to(self._dtype)

    def follow(self, rows: TableRows, estimates: Floats, changes: RowChanges) -> TableRows:
        """Update the counts for a window that was added to the view; collective.

        Returns the rows of this rank, ascending, whose stored data changed although they do not occur in the window.

        Parameters
        ----------
        rows
            Rows of the window's items, each once, (n,).
        estimates
            Result of `FrequencyView.estimates` for these items, (n, half-lives).
        changes
            Admitted rows, which are among `rows`, and evicted rows.
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
        """Read the counts of all rows from the sketch, as at the start; collective."""
        self.kept.clear(self._table.capacity)
        self._since_ms = self._chosen_ms = self._view.time_ms
        live = self._table.live
        for first in range(0, len(live), _AT_ONCE):
            rows = TableRows(live[first : first + _AT_ONCE])
            keys, (here, own) = self._table.keys_of(rows), self.kept.own(rows)
            self._put(here, self._view.estimates(ItemKeys(keys[own])))
        self.recount()

    def recount(self) -> None:
        """Recompute the sums of the counts of all rows; collective."""
        self._sum_up()
        self._normalise()

    def state_dict(self) -> dict[str, Tensor]:
        """Return units, choices and times of this rank's rows, for the checkpoint."""
        return {line: self.kept.of(line) for line in self.kept.stored} | {"times": self._times}

    def state_of(self, rows: TableRows) -> dict[str, Tensor]:
        """Return the arrays of `state_dict` at distinct rows (n,) of any rank.

        Collective, or called by rank 0 in `Workers.first`.
        """
        return {line: self.kept.fetch(rows, line) for line in self.kept.stored} | {"times": self._times}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict` for the same shard; call `recount` afterwards."""
        self.kept.load(self._table.capacity, state)
        self._since_ms, self._chosen_ms = state["times"].tolist()

    def load_rows(self, rows: TableRows, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_of` for rows (n,) of this rank; call `recount` afterwards."""
        self.kept.load_rows(rows, state)
        self._since_ms, self._chosen_ms = state["times"].tolist()

    @property
    def _times(self) -> Tensor:
        """Event times, in milliseconds, at which units were rescaled and half-lives chosen for all rows."""
        return torch.tensor([self._since_ms, self._chosen_ms])

    def _fading(self) -> Floats:
        """Return the current value of a unit under each half-life, (half-lives,)."""
        passed = (self._view.time_ms - self._since_ms) / 1000
        return np.array([0.5 ** (passed / life) for life in self._view.half_lives])

    def _set(self, rows: TableRows, estimates: Floats) -> None:
        """Set the counts of rows in use, (n,), and choose their half-lives."""
        here, own = self.kept.own(rows)
        self._count(here, -1)
        self._put(here, estimates[own])
        self._count(here, 1)

    def _put(self, lines: Ints, estimates: Floats) -> None:
        """Store counts and chosen half-lives at lines (n,), from estimates (n, half-lives)."""
        units, chosen = self.kept.units, self.kept.chosen
        units[lines] = torch.from_numpy(estimates / self._fading()).to(units.device)
        chosen[lines] = torch.from_numpy(self._view.choose(estimates)).to(chosen.device)

    def _count(self, lines: Ints, sign: int) -> None:
        """Add the counts at lines (n,) to the sums; subtract them if `sign` is -1."""
        units, chosen = self.kept.units[lines].cpu().numpy(), self.kept.chosen[lines].cpu().numpy()
        for number, total in enumerate(self._sums):
            values = units[chosen == number, number]
            total.add(values) if sign > 0 else total.remove(values)

    def _sum_up(self) -> None:
        """Recompute the sums over this rank's rows."""
        self._sums = [FlooredSum() for _ in self._view.half_lives]
        _, lines = self.kept.live(self._table.in_use)
        self._count(lines, 1)

    def _renew_units(self) -> TableRows:
        """Rescale units to counts if this is due; return the rows whose units changed."""
        if self._view.time_ms - self._since_ms <= 1000 * _UNITS_LAST * self._view.half_lives[0]:
            return no_rows()
        self.kept.units *= torch.from_numpy(self._fading()).to(self.kept.units.device)
        self._since_ms = self._view.time_ms
        self._sum_up()
        rows, _ = self.kept.live(self._table.in_use)
        return rows

    def _choose_again(self) -> TableRows:
        """Choose the half-life of every row again if it is due; return the rows whose choice changed."""
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
        """Recompute the scales and the normaliser of log Q; collective."""
        scales = self._fading() * self._view.to_longest
        self._scales = torch.from_numpy(scales).to(self.kept.units.device)
        sums = map(self._of_all, self._sums)
        total = sum(part.total(float(scale), _FLOOR) for part, scale in zip(sums, scales, strict=True))
        self._log_total = float(np.log(total)) if total else 0.0

    def _of_all(self, own: FlooredSum) -> FlooredSum:
        """Return the sum over all ranks; collective.

        The sum of a single rank may be wrong: a row may have moved to another rank since it was added.
        """
        if self._workers.world_size == 1:
            return own
        return FlooredSum.of(self._workers.collect(torch.from_numpy(own.bins)).numpy())


@dataclass(frozen=True, eq=False)
class LogQ:
    """Log Q by table row, as ``log_q[rows]``; `of` maps `counts` to log Q (`RowCounts.log_q`)."""

    counts: RowCounts | FetchedCounts
    of: Callable[[Tensor], Tensor]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return log Q of the items of rows, in the shape of the rows; collective like the counts."""
        return self.of(self.counts[rows])


def counted(counts: RowCounts, some: TableRows | None = None) -> dict[str, SharedLines]:
    """Return the arrays of `RowCounts.state_dict` over all ranks, or at some rows, fetched while they are iterated."""
    kept = counts.kept
    rows = range(kept.places.capacity) if some is None else some
    return {line: RowLines(partial(kept.fetch, line=line), rows) for line in kept.stored}


@dataclass
class Users:
    """Merged, decayed sketches of users, and a counter of distinct users that does not decay."""

    recent: FrequencyView
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, window_sketch: bytes, keys: UserKeys, event_ms: int) -> None:
        """Add a window: its serialised sketch of users, and the users' keys (n,), repeated or not."""
        self.recent.add(window_sketch, event_ms)
        self.distinct.update(keys)

    def counts(self, keys: UserKeys) -> npt.NDArray[np.float64]:
        """Return the decayed counts of users (n,), raised to at least 0.5."""
        return np.maximum(self.recent.counts(keys), 0.5)

    @property
    def total(self) -> float:
        """Decayed number of events of all users."""
        return self.recent.total

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as arrays, for the checkpoint."""
        flat = {f"recent.{name}": value for name, value in self.recent.state_dict().items()}
        distinct = np.frombuffer(bytearray(self.distinct.to_bytes()), np.uint8)
        return flat | {"distinct": distinct, "time_ms": np.array(self.recent.time_ms)}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Load the result of `state_dict`."""
        recent = {name.removeprefix("recent."): value for name, value in state.items() if name.startswith("recent.")}
        self.recent.load_state_dict(recent)
        self.recent.time_ms = int(np.asarray(state["time_ms"]))
        self.distinct = DistinctCounter.from_bytes(np.asarray(state["distinct"]).tobytes())
