import math

import pytest

from weir.trainer.offline.evaluator import Difference
from weir.verdict import against, against_all


@pytest.mark.parametrize(
    ("low", "mean", "high", "words"),
    [
        (0.01, 0.02, 0.03, "the model is better than popularity: recall@20 0.120 against 0.100: +0.020, "),
        (-0.03, -0.02, -0.01, "popularity is better than the model: "),
        (-0.01, 0.02, 0.05, "not to be told apart: recall@20 "),
    ],
)
def test_a_difference_in_words_says_what_its_interval_says(low: float, mean: float, high: float, words: str) -> None:
    said = against(Difference("recall@20", mean, low, high, 2500, 300), 0.1 + mean, 0.1)
    assert said.startswith(words)
    assert f"95 % interval {low:+.3f} to {high:+.3f} over 2,500 test cases of 300 users, which " in said
    assert said.endswith("includes 0" if low < 0 < high else "excludes 0")


def test_one_user_tells_nothing() -> None:
    said = against(Difference("recall@5", 0.5, math.nan, math.nan, 9, 1), 0.6, 0.1)
    assert said.startswith("not to be told apart: recall@5 0.600 against 0.100, but all test cases are of one user")


def lead(low: float, high: float) -> Difference:
    return Difference("recall@20", (low + high) / 2, low, high, 9, 3)


def test_another_method_is_called_by_its_name() -> None:
    said = against(lead(-0.03, -0.01), 0.1, 0.12, "EASE")
    assert said.startswith("EASE is better than the model: recall@20 0.100 against 0.120: -0.020, ")


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ([(0.1, 0.2), (0.01, 0.2)], "the model is better than all of 2 simple methods"),
        ([(0.1, 0.2), (-0.1, 0.2)], "the model is better than A; not to be told apart from B"),
        (
            [(-0.2, -0.1), (-0.1, 0.2), (0.1, 0.2)],
            "the model is better than C; worse than A; not to be told apart from B",
        ),
        ([(math.nan, math.nan)], "the model is not to be told apart from A"),
    ],
)
def test_many_methods_are_told_by_what_their_intervals_say(leads: list[tuple[float, float]], words: str) -> None:
    assert against_all({name: lead(*ends) for name, ends in zip("ABC", leads, strict=False)}) == words
