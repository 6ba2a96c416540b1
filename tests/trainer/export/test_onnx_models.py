""""""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from weir.trainer.export.onnx_models import OPSET, ExportError, bare, scorer_to_onnx, tower_to_onnx
from weir.trainer.settings.towers import TowerConfig, kinds
from weir.trainer.settings.trainer import RescoringConfig
from weir.trainer.settings.trainer import TowerConfig as TowerConfigTower
from weir.trainer.towers import build_tower
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


TOWER_CONFIGS = [
    TowerConfigTower(dimension=8, history_length=6, layers=1),
    TowerConfigTower(dimension=8, history_length=6, layers=2, dropout=0.5),
    *(TowerConfigTower(dimension=8, history_length=6, layers=2, kind=kind) for kind in kinds(knows_users=False)[1:]),
]


def run(data: bytes, history: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["history", "mask"]
    (user,) = session.run(["user"], {"history": history.numpy(), "mask": mask.numpy()})
    return np.asarray(user)


@pytest.mark.parametrize("config", TOWER_CONFIGS, ids=lambda config: f"{config.kind}-{config.layers}")
def test_onnx_runtime_computes_what_the_tower_does_whatever_its_parameters(config: TowerConfigTower) -> None:
    draw = torch.Generator().manual_seed(3)
    for seed, rows in ((1, 1), (2, 9)):
        tower = build_tower(config, seed).eval()
        with torch.no_grad():
            # Trained parameters are all different; a fresh tower's normalisations are all alike.
            for parameter in tower.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        data = tower_to_onnx(tower, config)
        history = torch.randn(rows, 6, 8, generator=draw)
        mask = torch.arange(6) >= torch.randint(0, 7, (rows, 1), generator=draw)
        mask[0] = False
        with torch.no_grad():
            wanted = tower(history, mask).numpy()
        np.testing.assert_allclose(run(data, history, mask), wanted, rtol=1e-5, atol=1e-5)
        assert onnx.ModelProto.FromString(data).opset_import[0].version == OPSET


def test_training_mode_does_not_leak_into_the_export() -> None:
    config = TOWER_CONFIGS[1]
    tower = build_tower(config, 1).train()
    assert tower_to_onnx(tower, config) == tower_to_onnx(tower.eval(), config)


def test_nothing_of_the_installation_is_in_the_model() -> None:
    """Two installations make one model of one tower."""
    config = TOWER_CONFIGS[0]
    data = tower_to_onnx(build_tower(config, 1), config)
    assert b"trainer/towers" not in data
    assert bare(data) == data
    noted = onnx.ModelProto.FromString(data)
    for part in (noted.graph, noted.graph.node[0]):
        part.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=__file__)
    assert bare(noted.SerializeToString()) == data


def test_a_tower_that_does_not_fit_the_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.trainer.export.onnx_models.trace_tower", _zero_graph)
    with pytest.raises(ExportError, match="the ONNX tower is off by"):
        tower_to_onnx(build_tower(TOWER_CONFIGS[0], 1), TOWER_CONFIGS[0])


def _zero_graph(config: TowerConfigTower) -> bytes:
    shape = ["batch", config.history_length, config.dimension]
    inputs = [
        onnx.helper.make_tensor_value_info("history", onnx.TensorProto.FLOAT, shape),
        onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, shape[:2]),
    ]
    output = onnx.helper.make_tensor_value_info("user", onnx.TensorProto.FLOAT, ["batch", config.dimension])
    node = onnx.helper.make_node("ReduceMax", ["history", "axes"], ["user"], keepdims=0)
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])
    graph = onnx.helper.make_graph([node], "zero", inputs, [output], [axes])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    return bytes(model.SerializeToString())
