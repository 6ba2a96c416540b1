"""Convert the user tower to ONNX.

Tracing takes seconds and parameters change with every bundle, so the graph is traced once per machine
(`weir.trainer.export.graph_cache`) and the parameters are inserted afterwards. Every model is compared with the tower
before it is returned.
"""

import logging
import warnings
from typing import Any, Final

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from weir.trainer.config import TowerConfig
from weir.trainer.export import graph_cache
from weir.trainer.export.errors import ExportError
from weir.trainer.export.graph import OPSET, compare
from weir.trainer.towers import build_tower

__all__ = ["bare", "is_traced", "keep_graph", "tower_to_onnx", "trace_tower"]

_GRAPHS: Final = dict[TowerConfig, bytes]()


def tower_to_onnx(tower: nn.Module, config: TowerConfig) -> bytes:
    """Return a tower as an ONNX model: ``history`` (B, L, d) float32 and ``mask`` (B, L) bool to ``user`` (B, d).

    Raises
    ------
    ExportError
        If the model's output differs from the tower's.
    """
    model = onnx.ModelProto.FromString(trace_tower(config))
    parameters = {name: value.detach().float().cpu() for name, value in tower.state_dict().items()}
    for initializer in model.graph.initializer:
        if initializer.name in parameters:
            initializer.CopyFrom(numpy_helper.from_array(parameters[initializer.name].numpy(), initializer.name))
    reference = build_tower(config, 0)
    reference.load_state_dict(parameters)
    compare(model, reference, _inputs(config), "tower")
    return model.SerializeToString()


def is_traced(config: TowerConfig) -> bool:
    """Return whether the graph is in memory, traced or set by `keep_graph`."""
    return config in _GRAPHS


def keep_graph(config: TowerConfig, graph: bytes) -> None:
    """Set the graph that `trace_tower` returns, as traced by another process."""
    _GRAPHS[config] = graph


def trace_tower(config: TowerConfig) -> bytes:
    """Return the graph of a tower as ONNX; tracing takes seconds the first time on a machine.

    It is not optimised: folding would merge and rename parameters, and runtimes fold on loading.
    """
    if not is_traced(config):
        graph = graph_cache.read(config)
        if graph is None:
            graph = _traced(config)
            graph_cache.write(config, graph)
        keep_graph(config, graph)
    return _GRAPHS[config]


@torch.no_grad()
def _traced(config: TowerConfig) -> bytes:
    # With gradients of the attention's bias enabled, tracing and conversion would choose other kernels.
    tower = build_tower(config, 0).eval()
    batch = {0: torch.export.Dim("batch")}
    noisy = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                tower,
                tuple(_inputs(config).values()),
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                input_names=["history", "mask"],
                output_names=["user"],
                dynamic_shapes=(batch, batch),
            )
    finally:
        noisy.setLevel(level)
    if program is None:
        raise ExportError("torch.onnx.export returned no program")
    return bare(bytes(program.model_proto.SerializeToString()))


def bare(model: bytes) -> bytes:
    """Return an ONNX model without metadata.

    Metadata names files and lines of the sources: two installations would give different models of one tower.
    """
    found = onnx.ModelProto.FromString(model)
    graph = found.graph
    parts: tuple[Any, ...] = (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for part in parts:
        del part.metadata_props[:]
    return found.SerializeToString()


def _inputs(config: TowerConfig) -> dict[str, Tensor]:
    """Return a small batch with an empty, a partial and a full history."""
    length = config.history_length
    draw = torch.Generator().manual_seed(0)
    history = torch.randn(3, length, config.dimension, generator=draw)
    return {"history": history, "mask": torch.arange(length) >= torch.tensor([[length], [length // 2], [0]])}
