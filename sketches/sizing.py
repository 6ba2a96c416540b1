"""Sizing of a count-min sketch for a bound on the error of log Q.

The error W is the mean of ``|estimated log Q - true log Q|`` over *occurrences* (a key counts as often as it occurs),
as it affects a batch of in-batch negatives.

Bound for every stream
----------------------
Let key i occur ``c_i`` times. In each row of the sketch it shares a cell with events of other keys; ``e_i`` is their
number in the row where it is smallest, so the estimate is ``c_i + e_i``. In a sketch without conservative updates

    W = sum_i c_i * log(1 + e_i / c_i) / sum_i c_i.

For fixed hashes, ``e_i`` is a minimum of sums of counts, hence concave in the counts; ``c * log(1 + e / c)`` is the
perspective of a concave function that grows with e, hence concave too. So W is concave in the shares of the keys. Its
mean over all hashes does not depend on which key has which share: a symmetric, concave function is largest where all
shares are equal. **No stream of n keys has a larger expected error than n keys that occur equally often.**

The bound does not depend on the order of events. Conservative updates keep it, because they never leave a cell above
its value without them; merging keeps it, because the sums of cells are at most the cells of the whole stream.

The error for equal counts can be computed: the number of keys in a cell is a Poisson variable. Streams with unequal
counts need fewer cells; given counts of the stream, `smallest` finds how many.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.sketches.protocol import Floats

__all__ = ["equal_counts_error", "linear_error", "smallest"]

_DEPTHS: Final = (2, 3, 4)
"""Two rows suffice for large errors; beyond four, memory shrinks little and every event costs more."""
_WIDEST: Final = 1 << 40
_SAMPLE: Final = 1 << 16
"""Least number of keys among which collisions are drawn: with fewer, the measured error would be noisy."""
_SEED: Final = 0x517E
_CROWDED: Final = 500.0
"""Keys per cell above which probabilities would underflow."""


def smallest(distinct: int, log_q_error: float, counts: npt.ArrayLike | None = None) -> tuple[int, int]:
    """Return width (a power of two) and depth of the smallest sketch whose expected error is at most `log_q_error`.

    Parameters
    ----------
    distinct
        Number of keys.
    log_q_error
        Upper bound of W, above 0.
    counts
        Counts of keys of the stream, (n,) with n <= `distinct`; the bound then holds for streams of `distinct`
        keys with such counts. None: for every stream.

    Raises
    ------
    ValueError
        If a parameter is out of range, or no sketch of up to 2**40 cells per row reaches the error.
    """
    if distinct < 1:
        raise ValueError(f"distinct must be at least 1, got {distinct}")
    if not log_q_error > 0.0:
        raise ValueError(f"log_q_error must be above 0, got {log_q_error}")
    sample = None if counts is None else _sample(counts, distinct)

    def error(width: int, depth: int) -> float:
        if sample is None:
            return equal_counts_error((distinct - 1) / width, depth)
        return linear_error(sample, max(1.0, width * sample.size / distinct), depth)

    options = [(width, depth) for depth in _DEPTHS if (width := _narrowest(error, depth, log_q_error))]
    if not options:
        raise ValueError(f"no sketch reaches log_q_error = {log_q_error} for {distinct} keys: allow a larger error")
    return min(options, key=lambda option: (option[0] * option[1], error(*option)))


def equal_counts_error(keys_per_cell: float, depth: int) -> float:
    """Return the expected error W of a linear sketch with equally frequent keys.

    In each row, a Poisson number of other keys shares a key's cell. If the smallest of these numbers is m, the error of
    the key is ``log(1 + m)``.
    """
    if keys_per_cell > _CROWDED:
        return math.log1p(keys_per_cell)  # the value at the mean of m, an upper bound (Jensen)
    at_least, term, error = 1.0, math.exp(-keys_per_cell), 0.0
    most = math.ceil(keys_per_cell + 12.0 * math.sqrt(keys_per_cell) + 20.0)
    for m in range(1, most):
        at_least -= term
        error += max(at_least, 0.0) ** depth * math.log1p(1.0 / m)
        term *= keys_per_cell / m
    return error


def linear_error(counts: Floats, width: float, depth: int) -> float:
    """Return the error W of a linear sketch of keys with these counts (n,), under random hashes with a fixed seed."""
    slots = np.random.default_rng(_SEED).integers(math.ceil(width), size=(depth, counts.size))
    noise = np.min([np.bincount(row, counts)[row] - counts for row in slots], axis=0)
    return float((counts * np.log1p(np.maximum(noise, 0.0) / counts)).sum() / counts.sum())


def _narrowest(error: Callable[[int, int], float], depth: int, limit: float) -> int | None:
    """Return the smallest width, a power of two, at which the error is at most `limit`; None above 2**40 cells."""
    width = 2
    while error(width, depth) > limit:
        width *= 2
        if width > _WIDEST:
            return None
    return width


def _sample(counts: npt.ArrayLike, distinct: int) -> Floats:
    """Return checked counts, repeated to about 65,536 keys, but at most `distinct`; raises `ValueError`."""
    checked = np.ascontiguousarray(counts, dtype=np.float64)
    if checked.ndim != 1 or not 1 <= checked.size <= distinct:
        raise ValueError(f"counts must be one-dimensional, of 1 to distinct = {distinct} keys, got {checked.shape}")
    if not ((checked > 0.0) & (checked < np.inf)).all():
        raise ValueError("counts must be finite and above 0")
    repeats = min(distinct // checked.size, -(-_SAMPLE // checked.size))
    return np.tile(checked, max(1, repeats))
