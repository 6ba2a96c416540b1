"""The contest of times: batches and figures of the product where nothing is known; towers that know no later event."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.times import BUCKETS, METRICS, VARIANTS, Timed, TimedLog, bucket, fresh, train
from weir.trainer.config import TowerConfig, TrainerConfig
from weir.trainer.offline.compare import Plan, run
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import Budget
from weir.trainer.offline.rows import ROWS
from weir.trainer.towers import build_tower

USERS, ITEMS, EVENTS = 20, 30, 1200
TOWER = TowerConfig(dimension=8, heads=1, history_length=6, expansion=1)
BASE = TrainerConfig.model_validate(
    {
        "device": "cpu",
        "batch_size": 64,
        "tower": TOWER,
        "negatives": {"mask_history": False},
        "optimizer": {"embedding_memory": 1.0},
    }
)
BATCH, LENGTH, DIMENSION = 3, 6, 8
KINDS = ("recency", "hstu")
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=torch.bool)


@pytest.fixture(scope="module")
def log() -> TimedLog:
    """Hold a log whose users take an even item at once, and an odd one after a day."""
    draw = np.random.default_rng(0)
    users, odd = draw.integers(0, USERS, EVENTS), draw.integers(0, 2, EVENTS)
    when = np.zeros(EVENTS, np.int64)
    for user in range(USERS):
        mine = users == user
        when[mine] = 1 + np.cumsum(np.where(odd[mine], 86_400_000, 1000)) + user
    items = 2 * draw.integers(0, ITEMS // 2, EVENTS) + odd
    order = np.argsort(when, kind="stable")
    user_ids, item_ids = (np.array([str(one) for one in range(size)], object) for size in (USERS, ITEMS))
    made = Interactions("made", users[order], items[order], when[order], user_ids, item_ids)
    return TimedLog.of(made, 10**6)


def test_batches_are_those_of_the_product_and_moments_those_of_positives(log: TimedLog) -> None:
    theirs = training_batches(BASE, log.interactions, log.split.train)
    for batch, (own, times, moments) in islice(zip(theirs, log.batches(BASE), strict=False), 5):
        assert all(torch.equal(one, other) for one, other in zip(batch, own, strict=True))
        assert moments[batch.positives > 0].ge(times[batch.positives > 0]).all()
        # What is a positive at one place is in the history of the next one.
        both = (batch.positives[:, :-1] > 0) & (batch.histories[:, 1:] > 0)
        assert torch.equal(moments[:, :-1][both], times[:, 1:][both])


def test_without_times_the_figures_are_those_of_the_product(log: TimedLog) -> None:
    plan = Plan(log.interactions, log.split, BASE, Budget(5), Rules("interaction", (20,)), None)
    theirs = run(plan, ROWS["mixed, standard"], ("one", 0), plan.evaluators(), lambda _: None)
    own = train(log, TOWER, VARIANTS["nothing"], 5, 0)
    assert {name: own.values[name].mean() for name in METRICS} == {name: theirs.metrics[name] for name in METRICS}


def test_moments_of_tests_are_those_of_their_events(log: TimedLog) -> None:
    past, followed = log.histories(4)
    assert torch.equal(past[:, 1:], followed[:, :-1])
    times = log.interactions.timestamps
    assert times is not None
    assert torch.equal(log.times[followed[:, -1]], torch.from_numpy(times[log.asked] // 1000))
    assert log.interactions.items[log.asked].tolist() == log.test.cases.relevant.values.tolist()
    assert set(log.passed().tolist()) == {1, 86_400}


@pytest.mark.parametrize("kind", KINDS)
def test_where_items_depend_on_the_time_passed_it_is_found(log: TimedLog, kind: str) -> None:
    tower = TOWER.model_copy(update={"kind": kind})
    names = "nothing", "time since the last item"
    nothing, passed = (train(log, tower, VARIANTS[name], 100, 0).values["ndcg@20"].mean() for name in names)
    assert passed > nothing + 0.05


def test_the_optimiser_has_what_times_add(log: TimedLog) -> None:
    model = fresh(log, BASE, VARIANTS["time since the last item"])
    known = {id(one) for one in model.optimizer.parameters}
    assert {id(one) for one in model.tower.parameters()} == known


@pytest.fixture(params=[(kind, layers) for kind in KINDS for layers in (1, 2)], ids=lambda one: f"{one[0]}-{one[1]}")
def config(request: pytest.FixtureRequest) -> TowerConfig:
    kind, layers = request.param
    return TowerConfig(kind=kind, layers=layers, dimension=DIMENSION, history_length=LENGTH, dropout=0.0)


def draw(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return a history, its times, and the moments after each of its items."""
    generator = torch.Generator().manual_seed(seed)
    times = 10**9 + torch.randint(0, 10**6, (BATCH, LENGTH + 1), generator=generator).cumsum(1)
    return torch.randn(BATCH, LENGTH, DIMENSION, generator=generator), times[:, :-1], times[:, 1:]


def timed(config: TowerConfig) -> Timed:
    return Timed(build_tower(config, 5), config, 1).eval()


def trained(config: TowerConfig) -> Timed:
    """Return a tower none of whose parameters is zero."""
    tower = timed(config)
    torch.manual_seed(5)
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


def test_before_the_first_step_it_is_the_tower_of_the_product(config: TowerConfig) -> None:
    history, times, moments = draw()
    tower, plain = timed(config), build_tower(config, 5).eval()
    torch.testing.assert_close(every(tower, history, times, moments), plain.every_position(history, MASK))
    torch.testing.assert_close(newest(tower, history, times, moments, MASK), plain(history, MASK))


def test_every_position_is_forward_of_each_prefix(config: TowerConfig) -> None:
    """So nothing that comes after the query, not even its time, shows in the vector."""
    history, times, moments = draw()
    tower = trained(config)
    read = every(tower, history, times, moments)
    for end in range(1, LENGTH + 1):
        prefix = (history[:, :end], times[:, :end], moments[:, :end], MASK[:, :end])
        torch.testing.assert_close(newest(tower, *prefix), read[:, end - 1])


def test_a_bucket_is_equally_wide_in_the_logarithm() -> None:
    seconds = torch.tensor([-5, 0, 1, 59, 3600, 86400, 10**9, 10**12])
    found = bucket(seconds)
    assert found[:2].tolist() == [0, 0]
    assert found[2] > 0
    assert found.diff()[1:].ge(0).all()
    assert found[-1] == BUCKETS - 1 > found[-2]
