import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from weir.trainer.config import TowerConfig
from weir.trainer.export.errors import ExportError
from weir.trainer.export.graph import OPSET
from weir.trainer.export.tower import bare, tower_to_onnx
from weir.trainer.tower_config import kinds
from weir.trainer.towers import build_tower

CONFIGS = [
    TowerConfig(dimension=8, history_length=6, layers=1),
    TowerConfig(dimension=8, history_length=6, layers=2, dropout=0.5),
    *(TowerConfig(dimension=8, history_length=6, layers=2, kind=kind) for kind in kinds(knows_users=False)[1:]),
]


def run(data: bytes, history: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["history", "mask"]
    (user,) = session.run(["user"], {"history": history.numpy(), "mask": mask.numpy()})
    return np.asarray(user)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.kind}-{config.layers}")
def test_onnx_runtime_computes_what_the_tower_does_whatever_its_parameters(config: TowerConfig) -> None:
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
    config = CONFIGS[1]
    tower = build_tower(config, 1).train()
    assert tower_to_onnx(tower, config) == tower_to_onnx(tower.eval(), config)


def test_nothing_of_the_installation_is_in_the_model() -> None:
    """Two installations make one model of one tower."""
    config = CONFIGS[0]
    data = tower_to_onnx(build_tower(config, 1), config)
    assert b"trainer/towers" not in data
    assert bare(data) == data
    noted = onnx.ModelProto.FromString(data)
    for part in (noted.graph, noted.graph.node[0]):
        part.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=__file__)
    assert bare(noted.SerializeToString()) == data


def test_a_tower_that_does_not_fit_the_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.trainer.export.tower.trace_tower", _zero_graph)
    with pytest.raises(ExportError, match="the ONNX tower is off by"):
        tower_to_onnx(build_tower(CONFIGS[0], 1), CONFIGS[0])


def _zero_graph(config: TowerConfig) -> bytes:
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
