import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from weir.trainer.export.errors import ExportError
from weir.trainer.export.graph import OPSET
from weir.trainer.export.scorer import scorer_to_onnx
from weir.trainer.rescoring_config import RescoringConfig
from weir.trainer.tower_config import TowerConfig
from weir.trainer.towers.mixture import MixtureOfLogits, build_scorer

CONFIGS = [
    RescoringConfig(kind="mixture_of_logits"),
    RescoringConfig(
        kind="mixture_of_logits", user_components=3, item_components=2, dimension=5, hidden=7, temperature=0.5
    ),
    RescoringConfig(kind="mixture_of_logits", user_components=1, item_components=1, dimension=1, hidden=1),
]


TOWER = TowerConfig(dimension=8, temperature=0.2)


def trained(config: RescoringConfig) -> MixtureOfLogits:
    scorer, draw = build_scorer(config, TOWER, 0), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return scorer


@pytest.mark.parametrize("config", CONFIGS, ids=["default", "uneven", "smallest"])
def test_onnx_runtime_computes_what_the_scorer_does_for_any_number_of_users_items_and_candidates(
    config: RescoringConfig,
) -> None:
    scorer, draw = trained(config), torch.Generator().manual_seed(5)
    data = scorer_to_onnx(scorer)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["user", "items", "candidates"]
    for users, items, candidates in ((1, 1, 1), (4, 9, 6), (2, 30, 70)):
        mine, its = (torch.randn(count, 8, generator=draw) for count in (users, items))
        chosen = torch.randint(0, items, (users, candidates), generator=draw)
        asked = {"user": mine.numpy(), "items": its.numpy(), "candidates": chosen.numpy()}
        (found,) = session.run(["score"], asked)
        with torch.no_grad():
            wanted = scorer(mine, its, chosen).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    onnx.checker.check_model(onnx.ModelProto.FromString(data), full_check=True)
    assert onnx.ModelProto.FromString(data).opset_import[0].version == OPSET


def test_the_same_parameters_make_the_same_bytes_and_stay_as_they_are() -> None:
    scorer = trained(CONFIGS[0]).double()
    assert scorer_to_onnx(scorer) == scorer_to_onnx(trained(CONFIGS[0]))
    assert scorer.user_components.weight.dtype == torch.float64
    assert scorer_to_onnx(trained(CONFIGS[0])) != scorer_to_onnx(build_scorer(CONFIGS[0], TOWER, 1))


def test_a_graph_that_computes_something_else_is_refused() -> None:
    class Doubled(MixtureOfLogits):
        def forward(self, users: torch.Tensor, items: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(users, items, candidates)

    with pytest.raises(ExportError, match="the ONNX scorer is off by"):
        scorer_to_onnx(Doubled(CONFIGS[0], TOWER))
