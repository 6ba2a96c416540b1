"""The gate: which bundles may be served."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Verdict", "judge"]


class Verdict(NamedTuple):
    """Whether a bundle is promoted, and why, in a sentence."""

    promoted: bool
    sentence: str


def judge(
    candidate: Mapping[str, float], current: Mapping[str, float] | None, *, figure: str, tolerance: float, finite: bool
) -> Verdict:
    """Compare a bundle with the promoted one by a prequential figure.

    Parameters
    ----------
    candidate, current
        Evaluation figures by name; `current` is None before the first promotion.
    figure
        The figure compared, higher is better (``recall@20``).
    tolerance
        Relative loss that is let through: 0.5 holds a bundle whose figure is below half of the current one's.
    finite
        Whether all numbers of the candidate are finite.
    """
    if not finite:
        return Verdict(promoted=False, sentence="held: its parameters or vectors contain NaN or infinity")
    if current is None:
        return Verdict(promoted=True, sentence="promoted: the first bundle")
    if figure not in candidate or figure not in current:
        return Verdict(promoted=True, sentence=f"promoted: no {figure} to compare yet")
    new, old = candidate[figure], current[figure]
    comparison = f"{figure} is {new:.4f}, the current bundle's {old:.4f}, tolerance {tolerance:g}"
    # Written so that a figure that is not a number is held, too.
    if new >= old * (1 - tolerance):
        return Verdict(promoted=True, sentence=f"promoted: {comparison}")
    return Verdict(promoted=False, sentence=f"held: {comparison}")
