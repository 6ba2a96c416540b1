""""""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.offline.logs import circles, log_of, small
from weir.trainer.offline.contest import DECAY, EASE, ITEM_KNN, Candidate, Contest, best, eases, item_knns, last_days
from weir.trainer.offline.data import InteractionsError, Ints
from weir.trainer.offline.evaluator import Evaluator, Protocol, Rules
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.peers import Catalogue, ease, gram
from weir.trainer.offline.splits import temporal
from weir.trainer.ranking import means
from weir.trainer.ranking.ranker import Scores

LOG = circles(users=30, items=40)
SPLIT = temporal(LOG)
ITEM_METHODS = ["item-kNN", "item-kNN with recency decay", "EASE", "EASE with recency decay"]
ALL = ["popularity", "popularity of the last days", *ITEM_METHODS]


def rules(protocol: Protocol = "interaction") -> Rules:
    return Rules(protocol, (1, 3))


def evaluator(held_out: Ints, protocol: Protocol = "interaction") -> Evaluator:
    return Evaluator.of(LOG, SPLIT.train, held_out, rules(protocol))


def test_what_comes_next_is_found_by_those_who_look_at_what_came_last() -> None:
    test, names = evaluator(SPLIT.test), list[str]()
    found = Contest(LOG, SPLIT.train, rules()).run(evaluator(SPLIT.validation), test, names.append)
    assert [peer.name for peer in found] == ALL
    assert names == ["popularity of the last days", "item-kNN", "EASE"]
    recall = {peer.name: means(peer.ranked, (1,))["recall@1"] for peer in found}
    assert recall["popularity"] == test.result(test.rank_by_popularity()).metrics["recall@1"]
    # On a circle an item's neighbours go together with it; only the newest item tells at which end a user is.
    for name in ("item-kNN", "EASE"):
        assert recall[f"{name} with recency decay"] > recall[name] + 0.2


def test_what_is_left_out_is_told_and_not_run() -> None:
    timeless = Contest(replace(LOG, timestamps=None), SPLIT.train, rules())
    assert timeless.left_out == {"popularity of the last days": "the log has no times"}
    large = Contest(LOG, SPLIT.train, rules(), largest=39)
    why = "40 items in training; a matrix of items by items is made of at most 39"
    assert large.left_out == dict.fromkeys(ITEM_METHODS, why)
    peers = large.run(evaluator(SPLIT.validation), evaluator(SPLIT.test))
    assert [peer.name for peer in peers] == ALL[:2]
    assert Contest(LOG, SPLIT.train, rules(), largest=40).left_out == {}


def test_a_test_by_user_has_no_newest_item() -> None:
    contest = Contest(LOG, SPLIT.train, rules("user"))
    assert contest.left_out == dict.fromkeys(ITEM_METHODS[1::2], "a random split has no order of time")
    peers = contest.run(evaluator(SPLIT.validation, "user"), evaluator(SPLIT.test, "user"))
    assert [peer.name for peer in peers] == [*ALL[:2], *ITEM_METHODS[::2]]


def test_without_validation_the_first_settings_are_taken() -> None:
    peers = Contest(LOG, SPLIT.train, rules()).run(evaluator(np.empty(0, np.int64)), evaluator(SPLIT.test))
    assert [peer.name for peer in peers] == ALL
    assert peers[-1].settings == {"l2": 250.0, "half_life_items": 5.0}


@pytest.mark.parametrize("protocol", ["interaction", "user"])
@pytest.mark.parametrize("new", [1, 9, 60])
def test_all_methods_rank_the_same_items(protocol: Protocol, new: int) -> None:
    """Those of training, although more are asked for than there are: the newest items of the log are new."""
    known, fresh = circles(users=6, items=8, each=20), np.arange(60)
    users = np.concatenate([known.users, fresh % 6])
    items = np.concatenate([known.items, np.where(fresh < 60 - new, fresh % 8, 8 + fresh)])
    log = log_of(users.tolist(), items.tolist())
    train, test_rows = np.arange(100), np.arange(120, 180)
    rules = Rules(protocol, (20,), filter_seen=False)
    validation, test = (Evaluator.of(log, train, rows, rules) for rows in (np.arange(100, 120), test_rows))
    model = test.rank(OfflineModel.fresh(small(), log, train))
    peers = Contest(log, train, rules).run(validation, test)
    for ranked in (model, *(peer.ranked for peer in peers)):
        assert all({*top.tolist()} == {-1, *range(8)} for top in ranked.top)
    asked = test.cases.relevant.values
    assert test.new_share == pytest.approx((asked >= 8).mean())
    assert (test.new_share == 1) is (new == 60)


DAY = 86_400_000


def test_popularity_of_the_last_days_counts_them_only() -> None:
    log = log_of([0] * 6, [0, 0, 0, 1, 2, 1])
    log = replace(log, timestamps=DAY * np.array([0, 1, 2, 8, 10, 300]))
    train = np.arange(5)
    evaluator = Evaluator.of(log, train, np.array([5]), Rules("interaction", (1,)))
    found = {
        int(one.settings["days"]): one.scores(evaluator)(torch.tensor([0])).tolist() for one in last_days(log, train)
    }
    # The log spans ten days up to the end of training: 30 days would be the same as all of it.
    assert found == {7: [[0, 1, 1]], 1: [[0, 0, 1]], 3: [[0, 1, 1]]}
    with pytest.raises(InteractionsError, match=r"log\.jsonl: has no timestamps"):
        next(last_days(replace(log, timestamps=None), train))


@pytest.mark.parametrize(("name", "make"), [(EASE, eases), (ITEM_KNN, item_knns)])
def test_only_with_decay_some_half_lives_are_tried(name: str, make: type) -> None:
    log = circles()
    catalogue = Catalogue(log, temporal(log).train)
    plain, decayed = (list(make(catalogue, decay=decay)) for decay in (False, True))
    assert {one.name for one in plain} == {name}
    assert {one.name for one in decayed} == {name, name + DECAY}
    assert [one.settings for one in decayed if one.name == name] == [one.settings for one in plain]
    tried = [tuple(one.settings.values()) for one in decayed]
    assert len(set(tried)) == len(tried)


def test_a_candidate_scores_by_its_settings() -> None:
    log = circles()
    split = temporal(log)
    catalogue = Catalogue(log, split.train)
    evaluator = Evaluator.of(log, split.train, split.test, Rules("interaction", (3,)))
    numbers = torch.arange(len(split.test))
    for one in eases(catalogue, decay=True):
        weights = ease(gram(catalogue.seen), one.settings["l2"])
        wanted = catalogue.query(evaluator.past, numbers.numpy(), one.settings.get("half_life_items")) @ weights
        assert torch.allclose(one.scores(evaluator)(numbers), torch.from_numpy(wanted))


TUNING_LOG = circles()
TUNING_SPLIT = temporal(TUNING_LOG)


def tuning_evaluator(held_out: Ints) -> Evaluator:
    return Evaluator.of(TUNING_LOG, TUNING_SPLIT.train, held_out, Rules("interaction", (1, 3), filter_seen=False))


def oracle(right: float) -> Candidate:
    """Return a candidate that knows this share of the answers."""

    def scores(cases: Evaluator) -> Scores:
        def of(numbers: torch.Tensor) -> torch.Tensor:
            found = torch.zeros(len(numbers), len(cases.counts))
            known = numbers < right * len(cases.cases)
            found[known, torch.from_numpy(cases.cases.relevant.values)[numbers[known]]] = 1.0
            return found

        return of

    return Candidate("a", {"right": right}, scores)


def test_validation_chooses_the_settings_of_each_name() -> None:
    other = Candidate("b", {}, oracle(0.1).scores)
    found = best([oracle(0.3), other, oracle(0.9), oracle(0.6)], tuning_evaluator(TUNING_SPLIT.validation))
    assert [(one.name, one.settings) for one in found] == [("a", {"right": 0.9}), ("b", {})]


def test_of_equal_ones_and_without_validation_the_first_is_taken() -> None:
    twins = [Candidate("a", {"number": number}, oracle(0.5).scores) for number in (1.0, 2.0)]
    assert best(twins, tuning_evaluator(TUNING_SPLIT.validation)) == twins[:1]
    assert best([oracle(0.1), oracle(0.9)], tuning_evaluator(np.empty(0, np.int64)))[0].settings == {"right": 0.1}
