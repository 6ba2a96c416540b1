"""Verdicts on evaluation figures in words: better, worse, not to be told apart, or from too small a log."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from weir.trainer.offline.evaluator import Difference

__all__ = ["SMALL_LOG", "against", "against_all", "judgement", "too_small", "wilson"]

SMALL_LOG: Final = 1000
"""Smallest number of events on which a model can be judged."""

_Z: Final = 1.96


def wilson(share: float, cases: int) -> tuple[float, float]:
    """Return the 95 % interval of a share observed in `cases` >= 1 cases (Wilson 1927)."""
    scale = _Z * _Z / cases
    middle = (share + scale / 2) / (1 + scale)
    reach = math.sqrt(share * (1 - share) * scale + scale * scale / 4) / (1 + scale)
    return middle - reach, middle + reach


def too_small(events: int) -> str:
    """Return the verdict on a log with fewer than `SMALL_LOG` events."""
    return f"too small to judge: {events:,} events, {SMALL_LOG:,} are enough"


def against(difference: "Difference", model: float, other: float, name: str = "popularity") -> str:
    """Return a sentence that compares the figures of model and another method: better or worse, by how much.

    `difference` is the model's lead with its interval, and `name` names the other method.
    """
    of = f"{difference.metric} {model:.3f} against {other:.3f}"
    sampled = f"over {difference.cases:,} test cases of {difference.users:,} users"
    if difference.users < 2:
        return f"not to be told apart: {of}, but all test cases are of one user, and an interval needs two"
    apart = f"{difference.mean:+.3f}, 95 % interval {difference.low:+.3f} to {difference.high:+.3f} {sampled}"
    if not difference.excludes_zero:
        return f"not to be told apart: {of}: {apart}, which includes 0"
    better, worse = ("the model", name) if difference.mean > 0 else (name, "the model")
    return f"{better} is better than {worse}: {of}: {apart}, which excludes 0"


def judgement(difference: "Difference") -> str:
    """Return ``better``, ``worse`` or ``not to be told apart``, by the interval of a difference."""
    if not difference.excludes_zero:
        return "not to be told apart"
    return "better" if difference.mean > 0 else "worse"


def against_all(differences: Mapping[str, "Difference"]) -> str:
    """Return in words which of the named methods the model beats, which beat the model, and which are too close."""
    by_word = dict[str, list[str]]()
    for name, difference in differences.items():
        by_word.setdefault(judgement(difference), []).append(name)
    if list(by_word) == ["better"]:
        return f"the model is better than all of {len(differences)} simple methods"
    phrases = {"better": "better than", "worse": "worse than", "not to be told apart": "not to be told apart from"}
    parts = [f"{phrase} {', '.join(by_word[word])}" for word, phrase in phrases.items() if word in by_word]
    return f"the model is {'; '.join(parts)}"
