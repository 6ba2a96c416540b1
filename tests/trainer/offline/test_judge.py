from dataclasses import replace

import numpy as np
import pytest

from tests.trainer.offline.logs import circles, log_of, small
from weir.trainer.offline.compare import Plan
from weir.trainer.offline.data import TooFewError
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.fit import Budget, Step
from weir.trainer.offline.judge import against_peers
from weir.trainer.offline.splits import temporal

LOG = circles(users=30)
PLAN = Plan(
    LOG, temporal(LOG), small(), Budget(60, 10, patience=2), Rules("interaction", (1, 3), filter_seen=False), None
)


def test_all_are_tested_on_the_same_cases() -> None:
    steps = list[Step]()
    found = against_peers(PLAN, lambda seed, step: steps.append(step))
    test = Evaluator.of(LOG, PLAN.split.train, PLAN.split.test, PLAN.rules)
    assert found.cases == len(PLAN.split.test)
    assert found.popularity == test.result(test.rank_by_popularity())
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
    assert len(steps) == found.training[0].steps


def test_without_validation_all_steps_are_trained() -> None:
    split = replace(PLAN.split, validation=np.empty(0, np.int64))
    found = against_peers(replace(PLAN, split=split, budget=Budget(7, 2, patience=1)))
    [training] = found.training
    assert (training.steps, training.best_step, training.curve) == (7, 7, ())


def test_each_seed_is_a_model_and_has_leads_of_its_own() -> None:
    plan = replace(PLAN, budget=Budget(5))
    alone = [against_peers(replace(plan, base=plan.base.model_copy(update={"seed": seed}))) for seed in (3, 4)]
    found = against_peers(replace(plan, base=plan.base.model_copy(update={"seed": 3})), seeds=2)
    assert [training.steps for training in found.training] == [5, 5]
    for number, peer in enumerate(found.peers):
        for metric, leads in peer.by_seed.items():
            assert leads == tuple(one.peers[number].leads[metric] for one in alone)
            assert peer.leads[metric].mean == pytest.approx(np.mean([lead.mean for lead in leads]))


def test_users_of_one_interaction_leave_nothing_to_train_on() -> None:
    log = log_of(list(range(50)))
    with pytest.raises(TooFewError, match="no user has two training interactions"):
        against_peers(replace(PLAN, interactions=log, split=temporal(log)))
