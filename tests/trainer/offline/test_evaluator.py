""""""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, log_of, small
from weir.trainer.items.table import FIRST_ITEM, PADDING
from weir.trainer.offline.compare import Plan
from weir.trainer.offline.data import Interactions, Ints, TooFewError
from weir.trainer.offline.evaluator import Difference, Evaluator, Protocol, Rules
from weir.trainer.offline.fit import Budget, Step
from weir.trainer.offline.judge import against_peers, export_model, export_ranks
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.splits import temporal
from weir.trainer.offline.statistics import interval
from weir.trainer.ranking import per_case
from weir.trainer.settings.towers import kinds

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


USERS, ITEMS = 4, 7
logs = st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1)), min_size=4, max_size=30)
any_rules = st.builds(
    Rules,
    st.sampled_from(["interaction", "user"]),
    st.sets(st.integers(1, 9), min_size=1, max_size=3).map(lambda ks: tuple(sorted(ks))),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, ITEMS)),
)
Row = tuple[list[int], list[int], dict[int, float]]
"""A case by hand: what is relevant, what was before, and the scores of all items."""


def by_hand(rows: list[Row], counts: list[int], rules: Rules) -> dict[str, float]:
    """Return all metrics with loops over sorted lists."""
    popular = sorted(range(ITEMS), key=lambda item: (-counts[item], item))
    index = set(range(ITEMS))
    if rules.index_top is not None:
        index = set(popular[: rules.index_top]) | {item for relevant, _, _ in rows for item in relevant}
    found: dict[str, Any] = {}
    for k in rules.cutoffs:
        sums, shown = np.zeros(3), set()
        for relevant, before, scores in rows:
            hidden = set(before) - set(relevant) if rules.filter_seen else set()
            ranking = [item for item in index - hidden if scores[item] > -math.inf]
            top = sorted(ranking, key=lambda item: (-scores[item], item))[:k]
            gains = [1 / math.log2(place + 2) for place, item in enumerate(top) if item in relevant]
            ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(relevant))))
            sums += [len(gains) / len(relevant), sum(gains) / ideal, len(gains) / k]
            shown |= set(top)
        recall, ndcg, precision = sums / len(rows)
        found |= {f"recall@{k}": recall, f"ndcg@{k}": ndcg, f"precision@{k}": precision}
        found[f"coverage@{k}"] = len(shown) / len(index)
    return found


def rows_of(
    log: list[tuple[int, int]], cut: int, rules: Rules, score: dict[int, dict[int, float]]
) -> tuple[list[Row], list[int]]:
    """Return the cases by hand, and the users they are of, for training rows before `cut`."""
    if rules.protocol == "interaction":
        users = [user for user, _ in log[cut:]]
        pasts = [[item for user, item in log[:row] if user == log[row][0]] for row in range(cut, len(log))]
        return [([log[cut + i][1]], past, score[users[i]]) for i, past in enumerate(pasts)], users
    users = sorted({user for user, _ in log[cut:]})
    own = [[sorted({item for user, item in part if user == one}) for part in (log[cut:], log[:cut])] for one in users]
    return [(relevant, past, score[user]) for user, (relevant, past) in zip(users, own, strict=True)], users


def evaluated(log: list[tuple[int, int]], cut: int, rules: Rules) -> tuple[Interactions, Ints, Evaluator]:
    interactions = log_of(*map(list, zip(*log, strict=True)), sizes=(USERS, ITEMS))
    train, asked = np.arange(cut), np.arange(cut, len(log))
    return interactions, train, Evaluator.of(interactions, train, asked, rules)


@settings(max_examples=60)
@given(logs, st.floats(0.2, 0.8), any_rules, st.integers(0, 99))
def test_figures_of_a_model_are_those_by_hand(
    log: list[tuple[int, int]], share: float, rules: Rules, seed: int
) -> None:
    cut = max(1, round(len(log) * share))
    interactions, train, evaluator = evaluated(log, cut, rules)
    model = OfflineModel.fresh(small("matrix_factorisation", tower={"dimension": 2}), interactions, train)
    # Whole numbers: products are exact, and tie often.
    drawn = torch.randint(-2, 3, model.embeddings.weight.shape, generator=torch.Generator().manual_seed(seed))
    model.embeddings.weight[1:] = drawn[1:].float()
    users = [user for user, _ in log[:cut]]
    items = {item for _, item in log[:cut]}
    weight = drawn.tolist()
    score = {
        # A user who is not known has zeros for a vector; an item that is not known is never shown.
        user: {
            item: sum(a * b for a, b in zip(weight[FIRST_ITEM + ITEMS + user], weight[FIRST_ITEM + item], strict=True))
            * (user in users)
            if item in items
            else -math.inf
            for item in range(ITEMS)
        }
        for user in range(USERS)
    }
    rows, asked = rows_of(log, cut, rules, score)
    assert evaluator.cases.users.tolist() == asked
    counts = [sum(item == other for _, other in log[:cut]) for item in range(ITEMS)]
    wanted = by_hand(rows, counts, rules)
    figures = evaluator.test(model)
    assert figures.metrics == pytest.approx(wanted)
    assert evaluator.validate(model) == figures.metrics
    assert set(figures.intervals) == {name for name in wanted if not name.startswith("coverage")}
    for name, (low, high) in figures.intervals.items():
        assert low <= high if len(set(asked)) > 1 else math.isnan(low)
        assert math.isnan(low) or -1e-9 <= low <= 1 + 1e-9, name
    assert sum(stratum.share for stratum in figures.strata.values()) == pytest.approx(1)
    assert len(figures.deciles) == 10


@settings(max_examples=60)
@given(logs, st.floats(0.2, 0.8), any_rules)
def test_popularity_is_a_ranking_by_sorted_counts(log: list[tuple[int, int]], share: float, rules: Rules) -> None:
    cut = max(1, round(len(log) * share))
    _, _, evaluator = evaluated(log, cut, rules)
    counts = [sum(item == other for _, other in log[:cut]) for item in range(ITEMS)]
    scores = {item: float(count) if count else -math.inf for item, count in enumerate(counts)}
    rows, _ = rows_of(log, cut, rules, dict.fromkeys(range(USERS), scores))
    assert evaluator.result(evaluator.rank_by_popularity()).metrics == pytest.approx(by_hand(rows, counts, rules))


@pytest.mark.parametrize("kind", kinds(knows_users=False))
@pytest.mark.parametrize("protocol", ["interaction", "user"])
def test_a_tower_reads_the_newest_known_items_of_the_past(kind: str, protocol: Any) -> None:
    # Item 5 is cold and stands in the past of row 8; user 3 is cold and has no past at all in training.
    log = [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (2, 0), (0, 5), (1, 5), (0, 1), (3, 2), (3, 0)]
    rules = Rules(protocol, (1, 2, 3), filter_seen=False)
    interactions, train, evaluator = evaluated(log, 6, rules)
    model = OfflineModel.fresh(small(kind, tower={"history_length": 3}), interactions, train)
    pasts = {
        "interaction": [[0, 2, 4], [1, 3], [2, 4, None], [], [2]],
        "user": [[0, 2, 4], [1, 3], []],
    }[protocol]
    padded = [[None] * (3 - len(past)) + past for past in pasts]
    rows = torch.tensor([[PADDING if item is None else FIRST_ITEM + item for item in past] for past in padded])
    model.tower.eval()
    weight = model.embeddings.weight
    with torch.no_grad():
        users = model.tower(weight[rows], rows != PADDING)
    scores = users / users.norm(dim=1, keepdim=True).clamp(min=1e-12) @ (weight / weight.norm(dim=1)[:, None])[2:].T
    known = {item for _, item in log[:6]}
    relevant = [[5], [5], [1], [2], [0]] if protocol == "interaction" else [[1, 5], [5], [0, 2]]
    by_case: list[Row] = [
        (own, [], {item: float(row[item]) if item in known else -math.inf for item in range(ITEMS)})
        for own, row in zip(relevant, scores, strict=True)
    ]
    counts = [sum(item == other for _, other in log[:6]) for item in range(ITEMS)]
    assert evaluator.validate(model) == pytest.approx(by_hand(by_case, counts, rules))


@pytest.mark.parametrize("protocol", ["interaction", "user"])
def test_fewer_cases_are_a_seeded_choice_of_all(protocol: Any) -> None:
    log = circles()
    split = temporal(log, test=0.3)

    def chosen(at_most: int | None, numbers: Ints = split.test) -> list[tuple[int, tuple[int, ...]]]:
        found = Evaluator.of(log, split.train, numbers, Rules(protocol, (5,)), at_most=at_most)
        items, place = found.cases.relevant.take(np.arange(len(found.cases)))
        return [(user, tuple(items[place == case].tolist())) for case, user in enumerate(found.cases.users.tolist())]

    whole = chosen(None)
    assert len(whole) == (len(split.test) if protocol == "interaction" else 20)
    assert chosen(8) == chosen(8)
    assert len(chosen(8)) == 8
    # In their order, each with all that is relevant to it, and not simply the first.
    remaining = iter(whole)
    assert all(case in remaining for case in chosen(8))
    assert chosen(8) != whole[:8]
    assert chosen(10_000) == whole


def test_a_choice_of_cases_keeps_each_past_with_its_case() -> None:
    log = circles()
    split = temporal(log, test=0.3)
    some = Evaluator.of(log, split.train, split.test, Rules("interaction", (5,)), at_most=8)
    items, place = some.past.take(np.arange(8))
    for case, user in enumerate(some.cases.users.tolist()):
        before = items[place == case].tolist()
        own = log.items[log.users == user].tolist()
        assert before == own[: len(before)]
        assert some.cases.relevant.values[case] == own[len(before)]


@pytest.mark.parametrize(("cutoffs", "name"), [((10, 20, 100), "recall@20"), ((1, 5), "recall@5")])
def test_the_headline_is_recall_at_20_where_it_is_measured(cutoffs: tuple[int, ...], name: str) -> None:
    assert Rules("interaction", cutoffs).headline == name


def test_a_difference_is_that_of_the_means_and_its_interval_is_paired() -> None:
    log = circles(users=30)
    split = temporal(log, test=0.3)
    evaluator = Evaluator.of(log, split.train, split.test, Rules("interaction", (2, 5)))
    model = OfflineModel.fresh(small(), log, split.train)
    ranked, popular = evaluator.rank(model), evaluator.rank_by_popularity()
    found = evaluator.difference([ranked], popular)
    means = [evaluator.result(one).metrics["recall@5"] for one in (ranked, popular)]
    assert (found.metric, found.cases, found.users) == ("recall@5", len(split.test), 30)
    assert found.mean == pytest.approx(means[0] - means[1])
    assert found.low <= found.mean <= found.high
    # The reverse is the mirror image, and a model is no different from itself.
    mirrored = evaluator.difference([popular], ranked)
    assert (mirrored.mean, mirrored.low, mirrored.high) == pytest.approx((-found.mean, -found.high, -found.low))
    same = evaluator.difference([ranked], ranked)
    assert (same.mean, same.low, same.high, same.excludes_zero) == (0, 0, 0, False)


def test_several_seeds_count_as_their_mean_case_by_case() -> None:
    log = circles(users=30)
    split = temporal(log, test=0.3)
    evaluator = Evaluator.of(log, split.train, split.test, Rules("interaction", (2, 5)))
    models = [evaluator.rank(OfflineModel.fresh(small(seed=seed), log, split.train)) for seed in (1, 2)]
    popular = evaluator.rank_by_popularity()
    apart = [per_case(one, [2])["ndcg@2"] - per_case(popular, [2])["ndcg@2"] for one in models]
    found = evaluator.difference(models, popular, "ndcg@2")
    assert found.metric == "ndcg@2"
    assert found.mean == pytest.approx(np.mean(apart))
    wanted = interval(np.mean(apart, 0), evaluator.cases.users, generator=np.random.default_rng(0))
    assert (found.low, found.high) == wanted
    together, alone = evaluator.result(*models), [evaluator.result(one) for one in models]
    for name, value in together.metrics.items():
        assert value == pytest.approx(np.mean([one.metrics[name] for one in alone]))
    for name, stratum in together.strata.items():
        assert stratum.share == alone[0].strata[name].share
        for metric, value in stratum.metrics.items():
            of_each = np.mean([one.strata[name].metrics[metric] for one in alone])
            assert value == pytest.approx(of_each, nan_ok=True)
    assert [one.cases for one in together.deciles] == [one.cases for one in alone[0].deciles]


@pytest.mark.parametrize(
    ("low", "high", "differs"), [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.2, False), (math.nan, math.nan, False)]
)
def test_an_interval_on_one_side_of_zero_tells_models_apart(low: float, high: float, differs: bool) -> None:
    assert Difference("recall@20", 0.1, low, high, 9, 3).excludes_zero == differs
