"""The models of a bundle as ONNX, the user tower and the second phase, each compared with its module.

Tracing takes seconds and parameters change with every bundle, so the graph is traced once per machine
(`weir.trainer.export.graph_cache`) and the parameters are inserted afterwards. Every model is compared with the tower
before it is returned.

Its graph is small and built by hand: tracing it would delay the first bundle by seconds. As for the tower, the model
is compared with its torch module before it is returned.
"""

import logging
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from weir.contracts import UserError
from weir.trainer.export.graph_cache import read_graph, write_graph
from weir.trainer.settings.towers import TowerConfig
from weir.trainer.towers import build_tower
from weir.trainer.towers.mixture import MixtureOfLogits

__all__ = [
    "OPSET",
    "AwaitedError",
    "ExportError",
    "bare",
    "compare",
    "is_traced",
    "keep_graph",
    "scorer_to_onnx",
    "tower_to_onnx",
    "trace_tower",
]


class ExportError(UserError):
    """A bundle could not be made; the message says why. Training continues without it."""


class AwaitedError(ExportError):
    """The bundle is being made in the background: export again later."""


OPSET: Final = 20
_TOLERANCE: Final = 1e-4


@torch.no_grad()
def compare(model: onnx.ModelProto, module: nn.Module, inputs: Mapping[str, Tensor], name: str) -> None:
    """Raise `ExportError` if a model's output differs from the module's, for inputs by name."""
    wanted = module.eval()(*inputs.values()).numpy()
    (found,) = ReferenceEvaluator(model).run(None, {key: value.numpy() for key, value in inputs.items()})
    if not np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        off = np.abs(found - wanted).max()
        raise ExportError(f"the ONNX {name} is off by {off:.3g}, at most {_TOLERANCE} is allowed")


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
        graph = read_graph(config)
        if graph is None:
            graph = _traced(config)
            write_graph(config, graph)
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


_IR_VERSION: Final = 9
_SHORTEST: Final = 1e-12
"""Least divisor of `torch.nn.functional.normalize`."""

_INPUTS: Final = (
    ("user", TensorProto.FLOAT, ("batch", "dimension")),
    ("items", TensorProto.FLOAT, ("items", "dimension")),
    ("candidates", TensorProto.INT64, ("batch", "candidates")),
)


def scorer_to_onnx(scorer: MixtureOfLogits) -> bytes:
    """Return a scorer as an ONNX model (inputs and outputs: `weir.contracts.bundles.manifest.BundleFile`).

    Raises
    ------
    ExportError
        If the model's output differs from the scorer's.
    """
    own = deepcopy(scorer).float().cpu()
    model = _Graph(own).model()
    compare(model, own, _examples(own), "scorer")
    return model.SerializeToString()


class _Graph:
    """Nodes and constants of the graph; each method adds nodes for a value and returns the value's name."""

    def __init__(self, scorer: MixtureOfLogits) -> None:
        self.scorer = scorer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        """Return the model of `MixtureOfLogits.forward`."""
        of_users, of_items, width = self.scorer.shape
        mine = self.add("Transpose", self.components("user", of_users), perm=[0, 2, 1])
        its = self.add("Gather", self.components("item", of_items), "candidates")
        products = self.add("MatMul", self.reshaped(its, 0, -1, width), mine)
        cosines = self.reshaped(products, 0, -1, of_users * of_items)
        of_user = self.add("Unsqueeze", self.network("user_weights", "user"), self.constant("second", [1]))
        of_item = self.add("Gather", self.network("item_weights", "items"), "candidates")
        both = self.add("Add", self.add("Mul", of_user, of_item), self.network("pair_weights", cosines))
        weighted = self.add("Mul", self.add("Softmax", self.silu(both), axis=-1), cosines)
        mean = self.add("ReduceSum", weighted, self.constant("last", [-1]), keepdims=0)
        share = self.scorer.share.detach().numpy() / self.scorer.temperature
        self.add("Add", self.products(), self.add("Mul", mean, self.constant("share", share)), output="score")
        inputs = [helper.make_tensor_value_info(*one) for one in _INPUTS]
        outputs = [helper.make_tensor_value_info("score", TensorProto.FLOAT, ("batch", "candidates"))]
        graph = helper.make_graph(self.nodes, "scorer", inputs, outputs, list(self.constants.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)

    def products(self) -> str:
        """Return the logits of the first phase, (batch, candidates)."""
        user = self.add("Unsqueeze", "user", self.constant("last", [-1]))
        products = self.add("MatMul", self.add("Gather", "items", "candidates"), user)
        flat = self.add("Squeeze", products, self.constant("last", [-1]))
        return self.add("Div", flat, self.constant("temperature", self.scorer.of_first))

    def components(self, side: str, count: int) -> str:
        """Return the components of users or items, (n, count, width), of length 1."""
        made = self.linear(f"{side}_components", "user" if side == "user" else "items")
        parts = self.reshaped(made, 0, count, self.scorer.shape[2])
        length = self.add("ReduceL2", parts, self.constant("last", [-1]), keepdims=1)
        return self.add("Div", parts, self.add("Max", length, self.constant("shortest", _SHORTEST)))

    def network(self, name: str, value: str) -> str:
        """Return the output of a network with one hidden layer."""
        return self.linear(f"{name}.2", self.silu(self.linear(f"{name}.0", value)))

    def linear(self, name: str, value: str) -> str:
        layer: Any = self.scorer.get_submodule(name)
        weight, bias = (one.detach().numpy() for one in (layer.weight.T, layer.bias))
        product = self.add("MatMul", value, self.constant(f"{name}.weight", weight))
        return self.add("Add", product, self.constant(f"{name}.bias", bias))

    def silu(self, value: str) -> str:
        return self.add("Mul", value, self.add("Sigmoid", value))

    def reshaped(self, value: str, *shape: int) -> str:
        """Return a value reshaped; 0 keeps a dimension, -1 infers it."""
        return self.add("Reshape", value, self.constant(f"shape {shape}", list(shape)))

    def constant(self, name: str, value: Any) -> str:
        """Return a constant: integers as int64, other numbers as float32."""
        array = np.ascontiguousarray(value)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        self.constants[name] = numpy_helper.from_array(array.astype(kind), name)
        return name

    def add(self, kind: str, *values: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, values, [name], **attributes))
        return name


def _examples(scorer: MixtureOfLogits) -> dict[str, Tensor]:
    """Return random users and items, with some items as candidates of several users."""
    draw, dimension = torch.Generator().manual_seed(0), scorer.user_components.in_features
    users, items = (torch.randn(count, dimension, generator=draw) for count in (3, 7))
    return {"user": users, "items": items, "candidates": torch.randint(0, 7, (3, 5), generator=draw)}
