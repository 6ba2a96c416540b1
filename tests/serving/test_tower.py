import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.serving.support import mean_tower
from weir.serving.tower import Tower


def test_it_runs_any_batch() -> None:
    tower = Tower(mean_tower())
    history = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32)
    mask = np.array([[False, False, True, True], [True] * 4, [False] * 4])
    masked = (history * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(tower(history, mask), masked, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tower(history[:1], mask[:1]), masked[:1], rtol=1e-5, atol=1e-6)


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Tower(b"no model")


def test_a_model_with_other_inputs_is_refused() -> None:
    node = helper.make_node("Identity", ["features"], ["user"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in ("features", "user")]
    graph = helper.make_graph([node], "other", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ValueError, match="features"):
        Tower(model.SerializeToString())


def test_the_runtime_tells_nobody_about_the_models_it_loads(tmp_path: Path) -> None:
    """Where it does, it leaves a device id and its unsent messages in the home directory."""
    # The runtime is silent under CI by itself.
    inherited = {name: value for name, value in os.environ.items() if name not in {"CI", "ORT_DISABLE_TELEMETRY"}}
    environment = inherited | {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    for module, silent in (
        ("weir.serving.tower", True),
        ("weir.trainer.export.servable", True),
        ("onnxruntime", False),
    ):
        subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True, timeout=120)
        assert (list(tmp_path.rglob("*")) == []) is silent, module
