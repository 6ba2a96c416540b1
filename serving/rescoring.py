"""Re-scoring, the second phase: reorder the best items of the index by the scorer's scores."""

from collections.abc import Sequence

import numpy as np

from weir.contracts import IndexRows
from weir.serving.bundle import LoadedBundle
from weir.serving.plan import Plan
from weir.serving.scorer import Floats
from weir.serving.spread import Ranked

__all__ = ["rescored"]


def rescored(bundle: LoadedBundle, plans: Sequence[Plan], queries: Floats, found: list[Ranked]) -> list[Ranked]:
    """Re-score the items `found` for each plan and sort them; `queries` is (n, dimension).

    All plans have candidates, or none has: then the items stay as found, without those below their task's threshold.
    Items with equal scores keep their order.
    """
    if bundle.scorer is None or not plans[0].candidates:
        return [plan.above(one) for plan, one in zip(plans, found, strict=True)]
    asked = np.full((len(found), max(len(rows) for _, rows in found)), -1)
    for place, (_, rows) in enumerate(found):
        asked[place, : len(rows)] = rows
    scores = bundle.scorer(queries, bundle.exact, IndexRows(asked))
    return [_in_order(line[: len(rows)], rows) for line, (_, rows) in zip(scores, found, strict=True)]


def _in_order(scores: Floats, rows: IndexRows) -> Ranked:
    order = np.argsort(-scores, kind="stable")
    return scores[order], IndexRows(rows[order])
