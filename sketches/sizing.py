"""How many cells a count-min sketch needs for a wanted error of log Q.

The error is the mean of ``|estimated log Q - true log Q|`` over *occurrences* (an item counts as often as it occurs),
which is what a batch of in-batch negatives feels. It depends on the number of cells per distinct key and on the depth:
few rows suffer less from a full table, many rows gain more from an empty one. Both tables were measured on 10M events
of a Zipf(1.05) law over 1M items (``python -m benchmarks.sketches sizing``).
"""

import math
from typing import Final

import numpy as np

from sketches.arrays import Floats

_CELLS: Final = np.log([0.0983, 0.197, 0.393, 0.786, 1.57, 3.15, 6.29, 12.6])
_ERRORS: Final = {
    (True, 4): np.log([0.542, 0.372, 0.221, 0.105, 0.0331, 0.00630, 0.000794, 0.0000796]),
    (True, 2): np.log([0.474, 0.313, 0.179, 0.0838, 0.0309, 0.00942, 0.00261, 0.000678]),
    (False, 4): np.log([0.810, 0.566, 0.361, 0.196, 0.0798, 0.0207, 0.00324, 0.000344]),
}


def sized(log_q_error: float, *, conservative: bool) -> tuple[int, float]:
    """Depth, and cells per distinct key (of all rows together), that reach an error with the least memory.

    Between measured points the logarithms are interpolated, below the last one they are continued.

    Raises
    ------
    ValueError
        When the error is not positive.
    """
    if not log_q_error > 0.0:
        raise ValueError(f"log_q_error must be above 0, got {log_q_error}")
    options = [
        (_cells(log_q_error, errors), depth) for (mode, depth), errors in _ERRORS.items() if mode == conservative
    ]
    cells, depth = min(options)
    return depth, cells


def _cells(log_q_error: float, errors: Floats) -> float:
    """Cells per distinct key for an error, from one measured curve."""
    error = math.log(log_q_error)
    if error < errors[-1]:
        slope = (_CELLS[-1] - _CELLS[-2]) / (errors[-1] - errors[-2])
        return math.exp(_CELLS[-1] + slope * (error - errors[-1]))
    return math.exp(np.interp(error, errors[::-1], _CELLS[::-1]))
