"""One ranker and one set of metrics, for the stream, offline evaluation and the benchmarks.

`rank` ranks items for test cases with any number of relevant items, to a given depth. It breaks ties by the lower
column and never excludes a relevant item. `highest` is `torch.topk`, faster for many columns. This package imports
neither the stream nor offline evaluation.
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
from weir.trainer.ranking.ranker import Ranked, distinct, highest, rank, user_vectors

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
    "recall",
    "user_vectors",
]
