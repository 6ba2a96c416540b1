"""Results of prequential evaluation: every window tests the model before the model trains on it.

All metrics are means over events (macro: every event counts once, whatever its user).
"""

from collections.abc import Iterable

from pydantic import Field

from weir.contracts import Document, Store
from weir.contracts.documents import write_document

__all__ = ["Evaluation", "mean_metrics", "save"]


class Evaluation(Document):
    """``evaluations/<window>/<pane>.json``: how well the model predicted a window; every mapping is by k.

    `novelty_bits` is the mean self-information -log2 Q of the first k recommended items, and `recommended_count` their
    mean decayed count: correcting log Q moves both. Metrics are absent where there was no event or no item to rank.
    """

    window: str
    sequence: int = Field(ge=0)
    step: int = Field(ge=0, description="steps trained before")
    events: int = Field(ge=0, description="positive events evaluated")
    known: int = Field(ge=0, description="of these, events whose item was in the table")
    items: int = Field(ge=0, description="items ranked")
    seen_filtered: bool = Field(description="whether the user's recent items were left out of the rankings")
    recall: dict[int, float] = Field(default_factory=dict)
    ndcg: dict[int, float] = Field(default_factory=dict)
    popularity_recall: dict[int, float] = Field(default_factory=dict)
    popularity_ndcg: dict[int, float] = Field(default_factory=dict)
    novelty_bits: dict[int, float] = Field(default_factory=dict)
    recommended_count: dict[int, float] = Field(default_factory=dict)


def mean_metrics(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Return means over events as ``recall@20`` and so on; empty if no evaluation has metrics."""
    counted = [evaluation for evaluation in evaluations if evaluation.recall]
    total = sum(evaluation.events for evaluation in counted)
    means: dict[str, float] = {}
    for name in ("recall", "ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits"):
        for k in counted[0].recall if counted else ():
            means[f"{name}@{k}"] = sum(getattr(one, name)[k] * one.events for one in counted) / total
    return means


def save(store: Store, evaluation: Evaluation) -> None:
    """Write an evaluation; deterministic for the same stream."""
    write_document(store, f"evaluations/{evaluation.window}.json", evaluation)
