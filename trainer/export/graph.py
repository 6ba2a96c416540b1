"""ONNX settings of all models of a bundle, and the comparison of a model with its torch module."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from weir.trainer.export.errors import ExportError

__all__ = ["OPSET", "compare"]

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
