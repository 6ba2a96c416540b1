from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.offline.logs import circles, log_of
from weir.trainer.offline.data import InteractionsError
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.peers.ease import ease, gram
from weir.trainer.offline.peers.methods import DECAY, EASE, ITEM_KNN, eases, item_knns, last_days
from weir.trainer.offline.peers.queries import Catalogue
from weir.trainer.offline.splits import temporal

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
