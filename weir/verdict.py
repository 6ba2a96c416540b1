"""What figures mean, in words, and when there are too few of them to mean anything."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainer.offline.evaluator import Difference

__all__ = ["SMALL_LOG", "against_popularity", "too_small"]

SMALL_LOG: Final = 1000
"""With fewer events a log is too small to judge a model by."""


def too_small(events: int) -> str:
    """Return what to say of a log of fewer than `SMALL_LOG` events."""
    return f"too small to judge: {events:,} events, {SMALL_LOG:,} are enough"


def against_popularity(difference: "Difference", model: float, popularity: float) -> str:
    """Return which of the two is better, by how much, and whether that is more than chance."""
    of = f"{difference.metric} {model:.3f} against {popularity:.3f}"
    sampled = f"over {difference.cases:,} test cases of {difference.users:,} users"
    if difference.users < 2:
        return f"not to be told apart: {of}, but all test cases are of one user, and an interval needs two"
    apart = f"{difference.mean:+.3f}, 95 % interval {difference.low:+.3f} to {difference.high:+.3f} {sampled}"
    if not difference.excludes_zero:
        return f"not to be told apart: {of}: {apart}, which includes 0"
    better, worse = ("the model", "popularity") if difference.mean > 0 else ("popularity", "the model")
    return f"{better} is better than {worse}: {of}: {apart}, which excludes 0"
