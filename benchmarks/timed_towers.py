"""The towers by distance, with times: a benchmark's own, to see what they are worth before the product has any.

A tower is told the seconds of what it reads next, and of the queries. All that times add is zero at first, so that
training begins as without them.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from weir.trainer.config import TowerConfig
from weir.trainer.towers.by_distance import ByDistance
from weir.trainer.towers.hstu import Hstu
from weir.trainer.towers.recency import Recency

__all__ = ["BUCKETS", "TIMED", "Knows", "Timed", "TimedHstu", "TimedRecency", "bucket"]

_WIDTH: Final = 0.301
"""Of a bucket, in natural logarithms of seconds, as in the code that HSTU's authors published."""
BUCKETS: Final = 72
"""The last one begins after 60 years."""
_HALF_LIVES: Final = (3600.0, 30 * 86400.0)
"""Of the means that forget by time, before training, in seconds."""


@dataclass(frozen=True)
class Knows:
    """What a tower knows of times.

    Attributes
    ----------
    ages
        How long before the query each item of the history came.
    gap
        How long before it the last one did.
    grain
        The gap is known in whole units of so many seconds.
    clock
        The hour and the weekday of the query, in UTC.
    query
        A query has the time of the event that follows; else that of the newest item of its history.
    real
        Times are those of the log; else an hour passes from each event to the next.
    """

    ages: bool = False
    gap: bool = False
    clock: bool = False
    query: bool = True
    real: bool = True
    grain: int = 1


def bucket(seconds: Tensor) -> Tensor:
    """Return buckets of seconds, of any shape, equally wide in their logarithm; 0 seconds, or less, have bucket 0."""
    return (torch.log1p(seconds.clamp(min=0).float()) / _WIDTH).long().clamp(max=BUCKETS - 1)


class _WithTime(nn.Module):
    """Parameters by distance (..., L), plus such by bucket of time: all their sums (..., L * `BUCKETS`)."""

    def __init__(self, by_time: Tensor) -> None:
        super().__init__()
        self.by_time = nn.Parameter(by_time)

    def forward(self, by_distance: Tensor) -> Tensor:
        """Return the sums; that of a distance and a bucket is at distance * `BUCKETS` + bucket."""
        return (by_distance[..., None] + self.by_time[..., None, :]).flatten(-2)


def add_times(module: nn.Module, name: str, by_time: Tensor) -> None:
    """Let a parameter by distance (..., L) be one by distance and time, whose part by time is trained from `by_time`.

    HSTU adds such a bias to its logits: Zhai et al., arXiv 2402.17152, equation 3.
    """
    parametrize.register_parametrization(module, name, _WithTime(by_time), unsafe=True)


class Timed(ByDistance):
    """A tower that is told times; the classes below put it before a tower of the product."""

    _ages: Tensor
    _said: tuple[Tensor, Tensor]

    def __init__(self, config: TowerConfig, knows: Knows) -> None:
        super().__init__(config)
        self.knows = knows
        # Of what is added to the history, and of what is added to the users.
        twice = 2 * config.dimension
        self.by_gap = nn.Parameter(torch.zeros(BUCKETS, twice)) if knows.gap else None
        self.by_hour = nn.Parameter(torch.zeros(24, twice)) if knows.clock else None
        self.by_weekday = nn.Parameter(torch.zeros(7, twice)) if knows.clock else None

    def tell(self, times: Tensor, moments: Tensor) -> None:
        """Say the seconds of the items read next, (B, L), and those of the query after each of them, (B, L)."""
        if not self.knows.real:
            times = 3600 * torch.arange(times.shape[1]).expand_as(times)
            moments = times + 3600
        if not self.knows.query:
            moments = times
        self._ages = bucket(moments[:, :, None] - times[:, None])
        self._said = self._of_moments(bucket((moments - times) // self.knows.grain), moments)

    def see(self, mask: Tensor, *, newest: bool = False) -> tuple[Tensor, Tensor]:
        """Return what `ByDistance.see` does; with ages, the places of distance and time together, (B, 1, Q, L)."""
        age, seen = super().see(mask, newest=newest)
        if not self.knows.ages:
            return age, seen
        return (age * BUCKETS + self._ages[:, -len(age) :])[:, None], seen

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return user vectors (B, d) at the newest moments, for item vectors (B, L, d) and `mask` (B, L)."""
        read, users = self._said
        # Not the abstract one: a tower of the product is next in the order of classes.
        return super().forward(history + read, mask) + users[:, -1]

    def every_position(self, history: Tensor, mask: Tensor) -> Tensor:
        """Return the user vectors (B, L, d) after each position, at its moment."""
        read, users = self._said
        return super().every_position(history + read, mask) + users

    def _of_moments(self, gaps: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """Return what moments (B, L) add to the history and to the users, both (B, L, d) or of one number."""
        parts = list[Tensor]()
        if self.by_gap is not None:
            parts.append(self.by_gap[gaps])
        if self.by_hour is not None and self.by_weekday is not None:
            parts += [self.by_hour[moments // 3600 % 24], self.by_weekday[moments // 86400 % 7]]
        said = torch.stack(parts).sum(0) if parts else torch.zeros(*moments.shape, 2)
        read, users = said.chunk(2, -1)
        return read, users


class TimedRecency(Timed, Recency):
    """`Recency`, whose logits have a part by time, and which has two more means, whose weights halve by time."""

    def __init__(self, config: TowerConfig, knows: Knows) -> None:
        super().__init__(config, knows)
        if not knows.ages:
            return
        more, (means, length) = len(_HALF_LIVES), self.decays.shape
        self.decays = nn.Parameter(torch.cat([self.decays.data, torch.zeros(more, length)]))
        self.mix = nn.Parameter(torch.cat([self.mix.data, torch.zeros(config.dimension, more * config.dimension)], 1))
        add_times(self, "distances", torch.zeros(config.heads, BUCKETS))
        add_times(self, "decays", torch.cat([torch.zeros(means, BUCKETS), _halving()]))

    def _weigh(self, by_age: Tensor, mask: Tensor, *, newest: bool = False) -> Tensor:
        if not self.knows.ages:
            return super()._weigh(by_age, mask, newest=newest)
        age, seen = self.see(mask, newest=newest)
        return torch.where(seen[:, None], by_age[:, age[:, 0]].transpose(0, 1), -torch.inf)


class TimedHstu(Timed, Hstu):
    """`Hstu` with the bias by time of its paper."""

    def __init__(self, config: TowerConfig, knows: Knows) -> None:
        super().__init__(config, knows)
        if knows.ages:
            for layer in self.layers:
                add_times(layer, "bias", torch.zeros(BUCKETS))


TIMED: Final[dict[str, type[TimedRecency] | type[TimedHstu]]] = {"recency": TimedRecency, "hstu": TimedHstu}


def _halving() -> Tensor:
    """Return logits (K, `BUCKETS`) whose weights halve by time; they end at -20, so that old items stay alike."""
    seconds = torch.expm1(torch.arange(BUCKETS) * _WIDTH)
    return (-math.log(2) * seconds / torch.tensor(_HALF_LIVES)[:, None]).clamp(min=-20)
