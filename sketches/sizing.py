"""How many cells a count-min sketch needs for a wanted error of log Q.

The error is the mean of ``|estimated log Q - true log Q|`` over *occurrences* (an item counts as often as it occurs),
which is what a batch of in-batch negatives feels. It depends on the number of cells per distinct key; the table was
measured by ``python benchmarks/sketches.py sizing`` on Zipf(1.05) streams with depth 4.
"""

import math
from typing import Final

import numpy as np

DEPTH: Final = 4
_CELLS: Final = np.array([0.4, 1.0, 1.6, 2.0, 4.0, 8.0])
_ERRORS: Final = {
    True: np.array([0.227, 0.096, 0.041, 0.026, 0.004, 0.0005]),
    False: np.array([0.362, 0.170, 0.080, 0.052, 0.010, 0.0014]),
}


def cells_per_key(log_q_error: float, *, conservative: bool) -> float:
    """Cells (of all rows together) per distinct key for an error, interpolated between measured points.

    Raises
    ------
    ValueError
        When the error is not positive.
    """
    if not log_q_error > 0.0:
        raise ValueError(f"log_q_error must be above 0, got {log_q_error}")
    error = math.log(log_q_error)
    cells, errors = np.log(_CELLS), np.log(_ERRORS[conservative])
    if error < errors[-1]:
        slope = (cells[-1] - cells[-2]) / (errors[-1] - errors[-2])
        return math.exp(cells[-1] + slope * (error - errors[-1]))
    return math.exp(np.interp(error, errors[::-1], cells[::-1]))
