from dataclasses import replace

import numpy as np
import pytest

from tests.trainer.offline.logs import circles, log_of, small
from weir.trainer.offline.data import Ints
from weir.trainer.offline.evaluator import Evaluator, Protocol, Rules
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.peers.contest import Contest
from weir.trainer.offline.splits import temporal
from weir.trainer.ranking import means

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
