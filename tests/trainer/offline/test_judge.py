from dataclasses import replace

import numpy as np
import pytest

from tests.trainer.offline.logs import circles, log_of, small
from trainer.offline.compare import Plan
from trainer.offline.data import TooFewError
from trainer.offline.evaluator import Evaluator, Rules
from trainer.offline.fit import Budget, Step
from trainer.offline.judge import against_peers
from trainer.offline.splits import temporal

LOG = circles(users=30)
PLAN = Plan(
    LOG, temporal(LOG), small(), Budget(60, 10, patience=2), Rules("interaction", (1, 3), filter_seen=False), None
)


def test_all_are_tested_on_the_same_cases() -> None:
    steps = list[Step]()
    found = against_peers(PLAN, steps.append)
    test = Evaluator.of(LOG, PLAN.split.train, PLAN.split.test, PLAN.rules)
    assert found.cases == len(PLAN.split.test)
    assert found.popularity == test.test_popularity()
    lead = found.model.metrics["recall@3"] - found.popularity.metrics["recall@3"]
    assert found.difference.mean == pytest.approx(lead)
    assert found.difference.low > 0
    assert found.left_out == {}
    names = ["popularity", "popularity of the last days", "item-kNN", "item-kNN with recency decay"]
    assert [peer.name for peer in found.peers] == [*names, "EASE", "EASE with recency decay"]
    for peer in found.peers:
        assert {name: lead.mean for name, lead in peer.leads.items()} == pytest.approx(
            {name: found.model.metrics[name] - peer.metrics[name] for name in ("recall@3", "ndcg@3")}
        )
        assert peer.leads["recall@3"].cases == found.cases
    assert len(steps) == found.training.steps


def test_without_validation_all_steps_are_trained() -> None:
    split = replace(PLAN.split, validation=np.empty(0, np.int64))
    found = against_peers(replace(PLAN, split=split, budget=Budget(7, 2, patience=1)))
    assert (found.training.steps, found.training.best_step, found.training.curve) == (7, 7, ())


def test_users_of_one_interaction_leave_nothing_to_train_on() -> None:
    log = log_of(list(range(50)))
    with pytest.raises(TooFewError, match="no user has two training interactions"):
        against_peers(replace(PLAN, interactions=log, split=temporal(log)))
