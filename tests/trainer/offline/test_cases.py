import numpy as np

from tests.trainer.offline.logs import log_of
from tests.trainer.ranking.ranked import lists
from trainer.offline.cases import each_interaction, each_user, top_items_and_positives


def test_cases_of_both_protocols() -> None:
    rows = log_of([0, 1, 0, 0, 2], [3, 1, 2, 3, 0])
    single = each_interaction(rows, np.array([0, 3, 4]))
    assert (single.users.tolist(), lists(single)) == ([0, 0, 2], [[3], [3], [0]])
    users = each_user(rows, np.array([4, 0, 2, 3]))
    assert (users.users.tolist(), lists(users)) == ([0, 2], [[2, 3], [0]])


def test_the_index_has_the_most_popular_items_and_all_positives() -> None:
    assert top_items_and_positives(np.array([1, 5, 0, 5, 5]), 2, np.array([2, 2, 1])).tolist() == [1, 2, 3]
