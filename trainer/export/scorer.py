"""Convert the re-scorer of the second phase to ONNX.

Its graph is small and built by hand: tracing it would delay the first bundle by seconds. As for the tower, the model
is compared with its torch module before it is returned.
"""

from copy import deepcopy
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from weir.trainer.export.graph import OPSET, compare
from weir.trainer.towers.mixture import MixtureOfLogits

__all__ = ["scorer_to_onnx"]

_IR_VERSION: Final = 9
_SHORTEST: Final = 1e-12
"""Least divisor of `torch.nn.functional.normalize`."""

_INPUTS: Final = (
    ("user", TensorProto.FLOAT, ("batch", "dimension")),
    ("items", TensorProto.FLOAT, ("items", "dimension")),
    ("candidates", TensorProto.INT64, ("batch", "candidates")),
)


def scorer_to_onnx(scorer: MixtureOfLogits) -> bytes:
    """Return a scorer as an ONNX model (inputs and outputs: `weir.contracts.bundle_manifest.BundleFile`).

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
