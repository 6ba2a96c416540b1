"""The ONNX models of a bundle: the user tower, and the scorer of the second phase.

Tracing a tower takes seconds and its parameters change with every bundle, so the graph is traced once per machine
(`weir.trainer.export.graph_cache`) and the parameters are inserted afterwards. The scorer's graph is small and built by
hand: tracing it would delay the first bundle by seconds. Every model's output is compared with that of its torch module
before the model is returned.
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


OPSET: Final = 20
_TOLERANCE: Final = 1e-4
"""Greatest difference between the outputs of a model and its torch module, relative and absolute."""

_GRAPHS: Final = dict[TowerConfig, bytes]()
"""Traced graphs of towers in this process."""

_IR_VERSION: Final = 9
_SHORTEST: Final = 1e-12
"""Least divisor of `torch.nn.functional.normalize`."""

_INPUTS: Final = (
    ("user", TensorProto.FLOAT, ("batch", "dimension")),
    ("items", TensorProto.FLOAT, ("items", "dimension")),
    ("candidates", TensorProto.INT64, ("batch", "candidates")),
)


class ExportError(UserError):
    """A bundle could not be made; the message says why. Training continues without it."""


class AwaitedError(ExportError):
    """The bundle is being made in the background: export again later."""


@torch.no_grad()
def compare(model: onnx.ModelProto, module: nn.Module, inputs: Mapping[str, Tensor], name: str) -> None:
    """Raise `ExportError` if a model and a torch module give different outputs for the same `inputs` (by name)."""
    expected = module.eval()(*inputs.values()).numpy()
    (output,) = ReferenceEvaluator(model).run(None, {key: value.numpy() for key, value in inputs.items()})
    if not np.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        off = np.abs(output - expected).max()
        raise ExportError(f"the ONNX {name} is off by {off:.3g}, at most {_TOLERANCE} is allowed")


def tower_to_onnx(tower: nn.Module, config: TowerConfig) -> bytes:
    """Return a tower as an ONNX model with inputs ``history`` (B, L, d) float32 and ``mask`` (B, L) bool.

    Its output is ``user`` (B, d).

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
    """Return whether the graph of a tower is in memory."""
    return config in _GRAPHS


def keep_graph(config: TowerConfig, graph: bytes) -> None:
    """Set the graph that `trace_tower` returns for a tower, after another process has traced it."""
    _GRAPHS[config] = graph


def trace_tower(config: TowerConfig) -> bytes:
    """Return the graph of a tower as ONNX, from memory or the cache; otherwise trace it, which takes seconds.

    The graph is not optimised: folding would merge and rename parameters, and runtimes fold on loading.
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
    """Trace a tower; raises `ExportError` if torch returns no program."""
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
    proto = onnx.ModelProto.FromString(model)
    graph = proto.graph
    parts: tuple[Any, ...] = (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for part in parts:
        del part.metadata_props[:]
    return proto.SerializeToString()


def _inputs(config: TowerConfig) -> dict[str, Tensor]:
    """Return the inputs of a tower: three users with an empty, a partial and a full history."""
    length = config.history_length
    draw = torch.Generator().manual_seed(0)
    history = torch.randn(3, length, config.dimension, generator=draw)
    return {"history": history, "mask": torch.arange(length) >= torch.tensor([[length], [length // 2], [0]])}


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
    """Builder of a scorer's graph; each method adds the nodes that compute a value and returns the value's name."""

    def __init__(self, scorer: MixtureOfLogits) -> None:
        self.scorer = scorer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def model(self) -> onnx.ModelProto:
        """Return the complete model, which computes `MixtureOfLogits.forward`."""
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
        inputs = [helper.make_tensor_value_info(*entry) for entry in _INPUTS]
        outputs = [helper.make_tensor_value_info("score", TensorProto.FLOAT, ("batch", "candidates"))]
        graph = helper.make_graph(self.nodes, "scorer", inputs, outputs, list(self.constants.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)

    def products(self) -> str:
        """Add the logits of the first phase, (batch, candidates)."""
        user = self.add("Unsqueeze", "user", self.constant("last", [-1]))
        products = self.add("MatMul", self.add("Gather", "items", "candidates"), user)
        flat = self.add("Squeeze", products, self.constant("last", [-1]))
        return self.add("Div", flat, self.constant("temperature", self.scorer.of_first))

    def components(self, side: str, count: int) -> str:
        """Add the components of users or items, (n, count, width), each of length 1; `side` is ``user`` or ``item``."""
        made = self.linear(f"{side}_components", "user" if side == "user" else "items")
        parts = self.reshaped(made, 0, count, self.scorer.shape[2])
        length = self.add("ReduceL2", parts, self.constant("last", [-1]), keepdims=1)
        return self.add("Div", parts, self.add("Max", length, self.constant("shortest", _SHORTEST)))

    def network(self, name: str, value: str) -> str:
        """Add a network of the scorer with one hidden layer, applied to a value."""
        return self.linear(f"{name}.2", self.silu(self.linear(f"{name}.0", value)))

    def linear(self, name: str, value: str) -> str:
        """Add a linear layer of the scorer, applied to a value."""
        layer: Any = self.scorer.get_submodule(name)
        weight, bias = (parameter.detach().numpy() for parameter in (layer.weight.T, layer.bias))
        product = self.add("MatMul", value, self.constant(f"{name}.weight", weight))
        return self.add("Add", product, self.constant(f"{name}.bias", bias))

    def silu(self, value: str) -> str:
        return self.add("Mul", value, self.add("Sigmoid", value))

    def reshaped(self, value: str, *shape: int) -> str:
        """Add the value in another shape; 0 keeps a dimension, -1 infers it."""
        return self.add("Reshape", value, self.constant(f"shape {shape}", list(shape)))

    def constant(self, name: str, value: Any) -> str:
        """Add a constant: integers as int64, other numbers as float32."""
        array = np.ascontiguousarray(value)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        self.constants[name] = numpy_helper.from_array(array.astype(kind), name)
        return name

    def add(self, kind: str, *values: str, output: str = "", **attributes: Any) -> str:
        """Add a node of this operator `kind`; `output` names its value, by default kind and number."""
        name = output or f"{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, values, [name], **attributes))
        return name


def _examples(scorer: MixtureOfLogits) -> dict[str, Tensor]:
    """Return inputs of a scorer: random users and items, with some items as candidates of several users."""
    draw, dimension = torch.Generator().manual_seed(0), scorer.user_components.in_features
    users, items = (torch.randn(count, dimension, generator=draw) for count in (3, 7))
    return {"user": users, "items": items, "candidates": torch.randint(0, 7, (3, 5), generator=draw)}
