"""The tower's graph from another process, as the exports use it."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from prometheus_client import CollectorRegistry

from tests.trainer.support import absorbed
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleLog, Store
from weir.trainer.export import onnx_models as traced
from weir.trainer.export import tracing
from weir.trainer.export.exporter import Exporter
from weir.trainer.export.tracing import tracing_of
from weir.trainer.settings.trainer import TowerConfig, TrainerConfig
from weir.trainer.stream.metrics import TrainerMetrics
from weir.trainer.towers import build_tower

SMALL = TowerConfig(kind="mean_pooling", dimension=4, history_length=3)


@pytest.fixture(autouse=True)
def _no_graph_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_graph_of_another_process_computes_what_the_tower_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TowerConfig(kind="mean_pooling", dimension=6, history_length=3)
    assert not traced.is_traced(config)
    tracing_of(config).wait()
    assert traced.is_traced(config)
    monkeypatch.setattr(traced, "_traced", None)
    tower = build_tower(config, 3).eval()
    model = ReferenceEvaluator(onnx.ModelProto.FromString(traced.tower_to_onnx(tower, config)))
    history, mask = torch.randn(2, 3, 6), torch.tensor([[False, True, True], [True, True, True]])
    (users,) = model.run(None, {"history": history.numpy(), "mask": mask.numpy()})
    np.testing.assert_allclose(users, tower(history, mask).detach().numpy(), atol=1e-5)


def test_where_that_process_fails_the_export_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TowerConfig(kind="mean_pooling", dimension=10, history_length=3)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        tracing_of(config).wait()
    assert not traced.is_traced(config)
    assert traced.tower_to_onnx(build_tower(config, 0).eval(), config)


def test_the_first_export_of_a_follower_waits_for_the_tower_that_is_traced_beside_it(
    store: Store, writer: WindowWriter, config: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "_GRAPHS", {})
    monkeypatch.setattr(traced, "_traced", None)
    synthetic(writer, windows=1)
    config = TrainerConfig.model_validate({**config.model_dump(), "tower": SMALL.model_dump()})
    state = absorbed(store, config)
    made = Exporter(store, config, TrainerMetrics(CollectorRegistry()), follows=True)
    made.prepare(state)
    state.position.trained_sequence = 0
    assert not traced.is_traced(config.tower)
    made.export_if_due(state)
    assert traced.is_traced(config.tower)
    assert len(BundleLog(store).versions()) == 1


def test_a_tower_is_traced_once_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all where it was traced on this machine before."""
    graph = traced.trace_tower(SMALL)
    monkeypatch.setattr(traced, "_GRAPHS", {})
    monkeypatch.setattr(tracing, "_traced_by_process", None)
    monkeypatch.setattr(tracing, "_STARTED", {})
    first = tracing_of(SMALL)
    assert tracing_of(TowerConfig.model_validate(SMALL.model_dump())) is first
    first.wait()
    assert traced.trace_tower(SMALL) == graph
