import json

from hypothesis import given
from hypothesis import strategies as st

from weir.trainer.state.evaluation import Evaluation
from weir.trainer.state.progress import Progress
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
