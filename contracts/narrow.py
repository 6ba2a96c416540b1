"""Numbers in half of the memory."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["narrow"]


def narrow(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """Return the same numbers as int32; raises `OverflowError` where one does not fit."""
    limits = np.iinfo(np.int32)
    if len(numbers) and not limits.min <= numbers.min() <= numbers.max() <= limits.max:
        raise OverflowError(f"{numbers.max()} rows or lists are more than int32 can count")
    return numbers.astype(np.int32, copy=False)
