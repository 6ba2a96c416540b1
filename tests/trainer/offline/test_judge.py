""""""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.offline.logs import circles, log_of, small
from weir.trainer.offline.compare import Plan
from weir.trainer.offline.data import TooFewError
from weir.trainer.offline.evaluator import Evaluator, Protocol, Rules
from weir.trainer.offline.fit import Budget, Step
from weir.trainer.offline.judge import against_peers, export_model, export_ranks
from weir.trainer.offline.model import OfflineModel
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


SPLIT = temporal(LOG)


@pytest.mark.parametrize("protocol", ["interaction", "user"])
def test_scores_follow_from_the_vectors_and_ranks_from_the_scores(tmp_path: Path, protocol: Protocol) -> None:
    test = Evaluator.of(LOG, SPLIT.train, SPLIT.test, Rules(protocol, (4,)))
    model = OfflineModel.fresh(small(seed=7), LOG, SPLIT.train)
    ranked, popular = test.rank(model), test.rank_by_popularity()
    export_model(tmp_path, LOG, test, model, ranked)
    export_ranks(tmp_path, LOG, test, {"model": ranked, "popularity": popular})
    items = pq.read_table(tmp_path / "items-seed7.parquet").to_pydict()
    assert items["item_id"] == LOG.item_ids.tolist()
    assert items["interactions"] == np.bincount(LOG.items[SPLIT.train], minlength=12).tolist()
    vectors = dict(zip(items["item_id"], items["vector"], strict=True))
    cases = pq.read_table(tmp_path / "cases-seed7.parquet").to_pylist()
    assert [case["user_id"] for case in cases] == LOG.user_ids[test.cases.users].tolist()
    for case in cases:
        found = [float(np.dot(case["vector"], vectors[item])) for item in case["item_ids"]]
        assert case["scores"] == pytest.approx(found, abs=1e-6)
        assert case["scores"] == pytest.approx(sorted(case["scores"], reverse=True), abs=1e-6)
        assert len(case["scores"]) == len(set(case["item_ids"])) <= 4
    ranks = pq.read_table(tmp_path / "ranks.parquet").to_pylist()
    assert [row["item_id"] for row in ranks] == LOG.item_ids[test.cases.relevant.values].tolist()
    for row in ranks:
        shown = cases[row["case"]]
        assert shown["user_id"] == row["user_id"]
        place = shown["item_ids"].index(row["item_id"]) + 1 if row["item_id"] in shown["item_ids"] else None
        assert row["model"] == place
    assert [row["popularity"] or 5 for row in ranks] == popular.ranks.tolist()


def test_a_case_without_as_many_items_has_a_shorter_list(tmp_path: Path) -> None:
    test = Evaluator.of(LOG, SPLIT.train, SPLIT.test, Rules("interaction", (20,)))
    model = OfflineModel.fresh(small(), LOG, SPLIT.train)
    ranked = test.rank(model)
    export_model(tmp_path, LOG, test, model, ranked)
    table = pq.read_table(tmp_path / "cases-seed0.parquet")
    assert [len(one) for one in table["item_ids"].to_pylist()] == (ranked.top >= 0).sum(1).tolist()
    assert torch.allclose(torch.tensor(table["vector"].to_pylist()), test.user_vectors(model))
