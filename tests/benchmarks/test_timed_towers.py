"""Towers with times: as the product's before the first step, and without a look into the future after it."""

from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.timed_towers import BUCKETS, TIMED, Knows, Timed, bucket
from benchmarks.times import VARIANTS
from weir.trainer.config import TowerConfig
from weir.trainer.towers import build_tower

ROWS, LENGTH, DIMENSION = 3, 6, 8
KNOWING = {name: knows for name, knows in VARIANTS.items() if knows != Knows()}
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=torch.bool)


@pytest.fixture(params=[(kind, layers) for kind in TIMED for layers in (1, 2)], ids=lambda one: f"{one[0]}-{one[1]}")
def config(request: pytest.FixtureRequest) -> TowerConfig:
    kind, layers = request.param
    return TowerConfig(kind=kind, layers=layers, dimension=DIMENSION, history_length=LENGTH, dropout=0.0)


def draw(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return a history, its times, and the moments after each of its items."""
    generator = torch.Generator().manual_seed(seed)
    times = 10**9 + torch.randint(0, 10**6, (ROWS, LENGTH + 1), generator=generator).cumsum(1)
    return torch.randn(ROWS, LENGTH, DIMENSION, generator=generator), times[:, :-1], times[:, 1:]


def timed(config: TowerConfig, knows: Knows) -> Timed:
    torch.manual_seed(5)
    return TIMED[config.kind](config, knows).eval()


def trained(config: TowerConfig, knows: Knows) -> Timed:
    """Return a tower none of whose parameters is zero."""
    tower = timed(config, knows)
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(torch.randn(parameter.shape) / 2)
    return tower


def every(tower: Timed, history: Tensor, times: Tensor, moments: Tensor) -> Tensor:
    tower.tell(times, moments)
    return tower.every_position(history, MASK)


def newest(tower: Timed, history: Tensor, times: Tensor, moments: Tensor, mask: Tensor) -> Tensor:
    tower.tell(times, moments)
    found: Tensor = tower(history, mask)
    return found


@pytest.mark.parametrize("knows", KNOWING.values(), ids=KNOWING)
def test_before_the_first_step_it_is_the_tower_of_the_product(config: TowerConfig, knows: Knows) -> None:
    history, times, moments = draw()
    tower, plain = timed(config, knows), build_tower(config, 5).eval()
    torch.testing.assert_close(every(tower, history, times, moments), plain.every_position(history, MASK))
    torch.testing.assert_close(newest(tower, history, times, moments, MASK), plain(history, MASK))


@pytest.mark.parametrize("knows", KNOWING.values(), ids=KNOWING)
def test_every_position_is_forward_of_each_prefix(config: TowerConfig, knows: Knows) -> None:
    """So nothing that comes after the query, not even its time, shows in the vector."""
    history, times, moments = draw()
    tower = trained(config, knows)
    read = every(tower, history, times, moments)
    for end in range(1, LENGTH + 1):
        prefix = (history[:, :end], times[:, :end], moments[:, :end], MASK[:, :end])
        torch.testing.assert_close(newest(tower, *prefix), read[:, end - 1])


@pytest.mark.parametrize("knows", KNOWING.values(), ids=KNOWING)
def test_the_moment_counts_unless_it_is_that_of_the_last_item(config: TowerConfig, knows: Knows) -> None:
    history, times, moments = draw()
    tower = trained(config, knows)
    later = torch.cat([moments[:, :-1], moments[:, -1:] + 40 * 86400 + 5 * 3600], 1)
    same = torch.equal(newest(tower, history, times, moments, MASK)[1], newest(tower, history, times, later, MASK)[1])
    assert same != (knows.query and knows.real)


@pytest.mark.parametrize("newest_only", [True, False])
def test_hstu_adds_both_biases_to_its_logits(newest_only: bool) -> None:
    """Equation 3 of arXiv 2402.17152, with the bias by places and by bucket of time, place by place."""
    config = TowerConfig(kind="hstu", dimension=DIMENSION, history_length=LENGTH, heads=1)
    _, times, moments = draw()
    tower = trained(config, Knows(ages=True))
    tower.tell(times, moments)
    layer: Any = tower.get_submodule("layers.0")
    by_place, by_time = layer.parametrizations.bias.original, layer.parametrizations.bias[0].by_time
    places, seen = tower.see(MASK, newest=newest_only)
    first = LENGTH - 1 if newest_only else 0
    for user, query, place in ((0, 5, 5), (0, 5, 2), (1, 5, 0)):
        passed = bucket(moments[user, query] - times[user, place])
        assert layer.bias[places[user, 0, query - first, place]] == by_place[query - place] + by_time[passed]
        assert seen[user, query - first, place]


def test_a_bucket_is_equally_wide_in_the_logarithm() -> None:
    seconds = torch.tensor([-5, 0, 1, 59, 3600, 86400, 10**9, 10**12])
    found = bucket(seconds)
    assert found[:2].tolist() == [0, 0]
    assert found[2] > 0
    assert found.diff()[1:].ge(0).all()
    assert found[-1] == BUCKETS - 1 > found[-2]


def test_the_clock_is_utc_and_monday_is_the_fifth_day() -> None:
    """1970 began on a Thursday."""
    tower = timed(TowerConfig(dimension=DIMENSION, history_length=1), Knows(clock=True))
    assert tower.by_hour is not None
    assert tower.by_weekday is not None
    with torch.no_grad():
        tower.by_hour[13], tower.by_weekday[4] = 1, 2
    moments = [datetime(2026, 6, day, hour, 30, tzinfo=UTC).timestamp() for day, hour in ((1, 13), (1, 14), (2, 13))]
    tower.tell(torch.zeros(3, 1, dtype=torch.int64), torch.tensor(moments).long()[:, None])
    assert tower._said[1][:, 0, 0].tolist() == [3, 2, 1]
