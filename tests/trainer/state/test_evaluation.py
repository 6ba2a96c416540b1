import pytest

from weir.contracts import Store
from weir.contracts.documents import read_document
from weir.trainer.state.evaluation import Evaluation, mean_metrics, save


def evaluation(sequence: int, events: int, recall: float | None) -> Evaluation:
    by_k = {} if recall is None else {20: recall}
    rest = dict.fromkeys(("ndcg", "popularity_recall", "popularity_ndcg", "novelty_bits"), by_k)
    facts = {
        "window": f"w{sequence}/0000",
        "sequence": sequence,
        "step": 0,
        "known": 0,
        "items": 9,
        "events": events,
    }
    return Evaluation.model_validate({**facts, "seen_filtered": False, "recall": by_k, **rest})


def test_figures_are_means_over_events_not_windows() -> None:
    means = mean_metrics([evaluation(0, 0, None), evaluation(1, 30, 0.1), evaluation(2, 10, 0.5)])
    assert means["recall@20"] == pytest.approx(0.2)
    assert mean_metrics([evaluation(0, 3, None)]) == {}


def test_evaluations_are_stored_by_window_and_read_back(store: Store) -> None:
    wanted = evaluation(3, 30, 0.1)
    save(store, wanted)
    data = store.read("evaluations/w3/0000.json")
    assert read_document(store, "evaluations/w3/0000.json", Evaluation) == wanted
    save(store, wanted)
    assert store.read("evaluations/w3/0000.json") == data
