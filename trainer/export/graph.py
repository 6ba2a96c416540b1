"""What all models of a bundle are: ONNX of one version, compared with the module before it is let out."""

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
    """Raise `ExportError` if a model does not compute what the module does, given inputs by their names."""
    wanted = module.eval()(*inputs.values()).numpy()
    (found,) = ReferenceEvaluator(model).run(None, {key: value.numpy() for key, value in inputs.items()})
    if not np.allclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        off = np.abs(found - wanted).max()
        raise ExportError(f"the ONNX {name} is off by {off:.3g}, at most {_TOLERANCE} is allowed")
