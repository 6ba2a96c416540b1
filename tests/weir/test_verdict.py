import math

import pytest

from trainer.offline.evaluator import Difference
from weir.verdict import against_popularity


@pytest.mark.parametrize(
    ("low", "mean", "high", "words"),
    [
        (0.01, 0.02, 0.03, "the model is better than popularity: recall@20 0.120 against 0.100: +0.020, "),
        (-0.03, -0.02, -0.01, "popularity is better than the model: "),
        (-0.01, 0.02, 0.05, "not to be told apart: recall@20 "),
    ],
)
def test_a_difference_in_words_says_what_its_interval_says(low: float, mean: float, high: float, words: str) -> None:
    said = against_popularity(Difference("recall@20", mean, low, high, 2500, 300), 0.1 + mean, 0.1)
    assert said.startswith(words)
    assert f"95 % interval {low:+.3f} to {high:+.3f} over 2,500 test cases of 300 users, which " in said
    assert said.endswith("includes 0" if low < 0 < high else "excludes 0")


def test_one_user_tells_nothing() -> None:
    said = against_popularity(Difference("recall@5", 0.5, math.nan, math.nan, 9, 1), 0.6, 0.1)
    assert said.startswith("not to be told apart: recall@5 0.600 against 0.100, but all test cases are of one user")
