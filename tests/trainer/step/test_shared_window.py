import numpy as np

from tests.trainer.step.test_ranks import on_ranks
from tests.trainer.support import drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store
from weir.trainer.config import TrainerConfig


def test_ranks_that_share_a_window_have_all_of_it(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    # Some ranks have no part of the first, and none has a positive of the second.
    writer.commit(["a"], ["x"], np.array([5]))
    writer.commit(["a"], ["x"], np.array([6]), positive=np.array([False]), span=(3_600_000, 7_200_000))
    synthetic(writer, first=2, windows=1, events=75, exposed=3, said=True)
    negatives = config.negatives.model_copy(update={"exposed": 2})
    shared = config.model_copy(update={"negatives": negatives, "batch_size": 11})
    on_ranks(3, "windows_of_ranks.py", store.url, shared.model_dump_json())


def test_a_sample_is_the_beginning_of_a_larger_one(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    (manifest,) = synthetic(writer, windows=1, events=60)
    every = drawn(store, manifest, config, 100)
    assert len(every.items) == 60
    few = drawn(store, manifest, config, 7)
    assert all(np.array_equal(one, other) for one, other in zip(few, (column[:7] for column in every), strict=True))
    assert not np.array_equal(every.items, drawn(store, manifest, config.model_copy(update={"seed": 1}), 100).items)
