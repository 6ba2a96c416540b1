"""One ranker and one set of metrics, for the stream, offline evaluation and the benchmarks.

`rank_of` ranks one held-out item per row exactly; `rank` finds the first `depth` items of test cases with any number of
relevant items. Both break ties by the lower column and never exclude a relevant item, so their ranks agree down to
`depth`. `highest` is `torch.topk`, faster among many columns. This room imports neither the stream nor offline
evaluation.
"""

from weir.trainer.ranking.cases import Cases, Lists
from weir.trainer.ranking.metrics import (
    NAMES,
    MetricSums,
    coverage,
    gain,
    hits,
    means,
    ndcg,
    per_case,
    precision,
    recall,
)
from weir.trainer.ranking.ranker import Ranked, distinct, highest, rank, rank_of, user_vectors

__all__ = [
    "NAMES",
    "Cases",
    "Lists",
    "MetricSums",
    "Ranked",
    "coverage",
    "distinct",
    "gain",
    "highest",
    "hits",
    "means",
    "ndcg",
    "per_case",
    "precision",
    "rank",
    "rank_of",
    "recall",
    "user_vectors",
]
