from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.offline.logs import circles, small
from weir.trainer.offline.evaluator import Evaluator, Protocol, Rules
from weir.trainer.offline.exports import export_model, export_ranks
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.splits import temporal

LOG = circles(users=30)
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
