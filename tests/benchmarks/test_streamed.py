"""The streamed contest: the model is tested before it learns, on the events and by the scores of the trainer itself."""

import numpy as np
import pytest

from benchmarks import streamed
from benchmarks.harness import printed
from benchmarks.streamed import METRICS, MODEL, Stream, ingested, scores_of
from weir.contracts import Store, WindowManifest
from weir.trainer.offline.data import read_store
from weir.trainer.offline.evaluator import Evaluator, Rules
from weir.trainer.ranking import means
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.progress import Evaluation
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import Positives

CONFIG = TrainerConfig(batch_size=64, evaluation_examples=10**6, evaluation_k=(20,))
PLAYS = 'pipeline.event_types={"play":"positive","skip":"negative"}'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Hold a store with the windows of a small generated log."""
    folder = tmp_path_factory.mktemp("streamed")
    printed("weir", "generate", str(folder / "plays.jsonl"), "--users", "60", "--items", "80", "--events", "3000")
    return Store(
        ingested(folder / "plays.jsonl", str(folder / "store"), [PLAYS, f"pipeline.window_seconds={5 * 86_400}"])
    )


class Recorder(Stream):
    """Keeps the recall of all events of each window, by the scores of the contest, without leaving out those seen."""

    def test(self, state: TrainerState, manifest: WindowManifest, found: Positives) -> None:
        """Test as the contest does, and by the rules of the trainer."""
        super().test(state, manifest, found)
        times = self.interactions.timestamps
        assert times is not None
        rows = np.flatnonzero((times >= manifest.start_ms) & (times < manifest.end_ms))
        # Items of the windows before are known, others are not ranked.
        before = np.flatnonzero(times < manifest.start_ms)
        every = Evaluator.of(
            self.interactions, before if len(before) else rows[:1], rows, Rules("interaction", (20,), filter_seen=False)
        )
        if not manifest.pane and len(state.table):
            own[str(manifest.name)] = means(every.rank_by(scores_of(state, self.interactions, every)), [20])[
                "recall@20"
            ]


own = dict[str, float]()
"""Recall by window."""


def test_the_model_is_scored_as_the_trainer_scores_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Recorder(read_store(store.path("")), cases=50)
    streamed.train(store, CONFIG, stream)
    evaluations = [Evaluation.model_validate_json(store.read(name)) for name in store.glob("evaluations/*/*.json")]
    expected = {one.window: one.recall[20] for one in evaluations if one.recall and one.window in own}
    assert len(expected) > 2
    # A late event is in its window here, and in a pane of its own there.
    assert own == pytest.approx(expected, rel=1e-9)
    assert all(len(test.users) == 50 for test in stream.tests)
    assert {"popularity", "EASE with recency decay", MODEL} < set(stream.tests[-1].values)
    stream.print("all", np.arange(len(stream.tests)))
    recall = np.concatenate([one.values[MODEL][METRICS[0]] for one in stream.tests]).mean()
    assert f"| {MODEL} | {recall:.4f} |" in capsys.readouterr().out
