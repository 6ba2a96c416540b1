import numpy as np
import torch

from tests.trainer.offline.logs import circles
from weir.trainer.offline.data import Ints
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.offline.peers.tuning import Candidate, best
from weir.trainer.offline.splits import temporal
from weir.trainer.ranking.ranker import Scores

LOG = circles()
SPLIT = temporal(LOG)


def evaluator(held_out: Ints) -> Evaluator:
    return Evaluator.of(LOG, SPLIT.train, held_out, Rules("interaction", (1, 3), filter_seen=False))


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
    found = best([oracle(0.3), other, oracle(0.9), oracle(0.6)], evaluator(SPLIT.validation))
    assert [(one.name, one.settings) for one in found] == [("a", {"right": 0.9}), ("b", {})]


def test_of_equal_ones_and_without_validation_the_first_is_taken() -> None:
    twins = [Candidate("a", {"number": number}, oracle(0.5).scores) for number in (1.0, 2.0)]
    assert best(twins, evaluator(SPLIT.validation)) == twins[:1]
    assert best([oracle(0.1), oracle(0.9)], evaluator(np.empty(0, np.int64)))[0].settings == {"right": 0.1}
