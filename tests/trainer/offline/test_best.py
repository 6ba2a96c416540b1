import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.offline.logs import circles, everything, small
from weir.trainer.offline.best import BestStep
from weir.trainer.offline.model import OfflineModel
from weir.trainer.offline.results import CurvePoint

LOG = circles(users=3, items=4, each=3)


def fill(model: OfflineModel, value: float) -> None:
    model.embeddings.weight.fill_(value)
    with torch.no_grad():
        for tensor in model.tower.state_dict().values():
            tensor.fill_(value)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_what_comes_back_is_the_first_of_the_best(values: list[int]) -> None:
    model, best = OfflineModel.fresh(small(), LOG, everything(LOG)), BestStep("recall@1")
    for step, value in enumerate(values, 1):
        fill(model, step)
        best.see(CurvePoint(step=step, seconds=0, loss=0, metrics={"recall@1": value, "recall@2": -value}), model)
        assert best.worse_since == step - 1 - values[:step].index(max(values[:step]))
    fill(model, -1)
    step = best.restore(model)
    assert step == 1 + values.index(max(values))
    assert (model.embeddings.weight == step).all()
    assert all((tensor == step).all() for tensor in model.tower.state_dict().values())


def test_before_the_first_validation_there_is_nothing_to_bring_back() -> None:
    with pytest.raises(ValueError, match="no validation yet"):
        BestStep("recall@1").restore(OfflineModel.fresh(small(), LOG, everything(LOG)))
