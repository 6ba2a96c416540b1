"""How large the largest tensor is that some code makes."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Largest"]


class Largest(TorchDispatchMode):
    """Notes the largest number of elements that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor):
                self.numel = max(self.numel, one.numel())
        return result
