""""""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import Store
from weir.contracts.storage.documents import read_document
from weir.trainer.state.progress import Evaluation, Progress, mean_metrics, save
from weir.trainer.step.model import Position

NUMBERS = st.integers(0, 2**53)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, NUMBERS, st.text(), st.integers(-1, 2**53), NUMBERS, st.text())
EVALUATIONS = st.builds(
    Evaluation, window=st.text(), sequence=NUMBERS, step=NUMBERS, events=NUMBERS, known=NUMBERS, items=NUMBERS,
    seen_filtered=st.booleans(), recall=st.dictionaries(st.integers(1, 100), st.floats(0, 1)),
)  # fmt: skip


@given(POSITIONS, NUMBERS, st.lists(EVALUATIONS, max_size=3))
def test_what_is_stored_is_read_again(position: Position, time_ms: int, recent: list[Evaluation]) -> None:
    progress = Progress(position, time_ms, tuple(recent))
    assert Progress.decoded(progress.encoded()) == progress


def test_between_windows_it_is_what_earlier_versions_wrote() -> None:
    position = Position(sequence=3, step=9, trained_window="w", trained_sequence=2, max_event_ms=5)
    stored = json.loads(Progress(position, 7, ()).encoded().numpy().tobytes())
    place = {"sequence": 3, "batch": 0, "step": 9, "learnt": "w", "learnt_sequence": 2, "max_event_ms": 5}
    assert stored == {"position": place, "time_ms": 7, "recent": []}


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
