import pytest

from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import Store, WindowLog
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.stream.cost import measure

PARTS = ["draw", "rows", "hits", "tower", "loss", "backward", "sum", "update"]


def test_the_parts_of_a_step_are_timed_on_the_newest_windows(
    store: Store, writer: WindowWriter, config: TrainerConfig
) -> None:
    # 13 batches of 32 in each window.
    synthetic(writer, windows=4, events=400)
    before = store.find("").keys()
    cost = measure(WindowLog(store), config, 15)
    assert store.find("").keys() == before
    assert (cost.batch_size, cost.steps, cost.windows) == (32, 15, 2)
    assert 40 < cost.items <= 60
    assert list(cost.parts) == PARTS
    assert all(value >= 0 for value in cost.parts.values())
    assert min(cost.step, cost.tower, cost.products) > 0
    # The step holds both, and more. A median of few steps on a busy machine is not exact.
    assert cost.ratio > 1
    assert cost.step == pytest.approx(sum(cost.parts.values()), rel=0.5)


def test_the_loss_alone_grows_with_the_columns(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, events=400)
    plain = config.model_dump()
    few, many = (
        measure(WindowLog(store), TrainerConfig.model_validate(plain | {"negatives": {"uniform": count}}), 8)
        for count in (8, 400_000)
    )
    assert many.products > 20 * few.products
    assert many.parts["draw"] > 2 * few.parts["draw"]


def test_too_few_examples_are_refused(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=1, events=60)
    with pytest.raises(ValueError, match="1 windows hold 2 batches of 32 examples, at least 3 are needed: set a small"):
        measure(WindowLog(store), config, 4)
