"""The contest of times: the product's own batches, tests and figures where nothing is known, and times that help."""

from itertools import islice

import numpy as np
import pytest
import torch

from benchmarks.timed_towers import TIMED
from benchmarks.times import METRICS, VARIANTS, TimedLog, fresh, train
from weir.trainer.config import TowerConfig, TrainerConfig
from weir.trainer.offline.compare import Plan, run
from weir.trainer.offline.data import Interactions
from weir.trainer.offline.evaluator import Rules
from weir.trainer.offline.examples import training_batches
from weir.trainer.offline.fit import Budget
from weir.trainer.offline.rows import ROWS

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


@pytest.mark.parametrize("kind", TIMED)
def test_where_items_depend_on_the_time_passed_it_is_found(log: TimedLog, kind: str) -> None:
    tower = TOWER.model_copy(update={"kind": kind})
    names = "nothing", "time since the last item"
    nothing, passed = (train(log, tower, VARIANTS[name], 100, 0).values["ndcg@20"].mean() for name in names)
    assert passed > nothing + 0.05


def test_the_optimiser_has_what_times_add(log: TimedLog) -> None:
    model = fresh(log, BASE, VARIANTS["all of it"])
    known = {id(one) for one in model.optimizer.parameters}
    assert {id(one) for one in model.tower.parameters()} == known
