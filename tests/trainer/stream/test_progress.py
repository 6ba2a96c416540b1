import math

import numpy as np
import pytest

from weir.contracts import Store
from weir.trainer.items.table import RowChanges
from weir.trainer.state.progress import Evaluation
from weir.trainer.step.step import StepResult
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.stream.progress import ProgressObserver, TrainProgress

STEP = StepResult(1.5, 2, stop=False, seconds={"gradients": 0.1})
EVALUATION = Evaluation(window="w/0000", sequence=3, step=0, events=1, known=1, items=1, seen_filtered=False)


def run(observer: ProgressObserver) -> None:
    observer.evaluated(EVALUATION)
    observer.ingested(RowChanges(np.arange(3), np.arange(0)), 3, 7, 0)
    observer.window_started("w/0000", 3, 120, 0, 0)
    for step in range(1, 121):
        observer.stepped(STEP, 10, step, step)
    observer.window_trained(3, 120, 120)


def test_progress_comes_at_both_ends_and_every_50_steps(store: Store) -> None:
    told: list[TrainProgress] = []
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True, report=told.append)
    run(observer)
    assert [(one.batch, one.examples) for one in told] == [(0, 0), (50, 500), (100, 1000), (120, 1200)]
    assert told[0].loss is None
    assert told[-1] == TrainProgress(
        window="w/0000", sequence=3, batch=120, batches=120, step=120, examples=1200, loss=1.5, evaluation=EVALUATION
    )
    assert (observer.windows, observer.unadmitted) == (1, 7)
    assert store.exists("evaluations/w/0000.json")


def test_other_ranks_count_but_keep_silent(store: Store) -> None:
    told: list[TrainProgress] = []
    observer = ProgressObserver(store, TrainerMetrics(), is_first=False, report=told.append)
    run(observer)
    assert told == []
    assert observer.examples == 1200
    assert not store.exists("evaluations")


def test_a_refused_step_is_named_and_counts_no_example(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    observer = ProgressObserver(store, TrainerMetrics(), is_first=True)
    observer.stepped(STEP, 10, 1, 1)
    observer.stepped(STEP._replace(loss=math.nan, norm=math.inf, refused=True), 10, 2, 2)
    assert (observer.examples, observer.loss) == (10, 1.5)
    assert caplog.messages == ["step 2 is refused: loss nan, gradients of norm inf"]
