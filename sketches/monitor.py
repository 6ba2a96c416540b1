"""How wrong is log Q right now? An estimate from the sketch alone, without the true counts.

Phantoms are keys that never occurred. What a sketch says about them is collision noise, e, and similar noise sits on
the real counts c, whose log Q is then off by ``log(1 + e / c)``. The counts, weighted by occurrence, are recovered from
the cells:

- In a linear sketch a cell holds a sum. One picked with probability proportional to its content is the cell of a random
  event, and holds c plus the content of any other cell, which is taken off.
- In a conservative sketch a cell holds about the largest count of its keys. If K(t) keys count more than t, a share
  ``exp(-K(t) / width)`` of the cells is at most t, so that the sorted cells give K, the number of keys by count.

A conservative update also lets in less noise the emptier the table is: at low load a key must come last of the
depth + 1 keys that share its cells, at full load nothing is saved. The divisor ``1 + depth * sqrt(1 - fill)`` joins
both ends. How near the estimate comes is measured by ``python -m benchmarks.sketches monitor`` and ``real``.
"""

import math
from typing import Final

import numpy as np

from sketches.arrays import Floats
from sketches.bank import FrequencyBank
from sketches.count_min import CountMinSketch
from sketches.exact import ExactCounter
from sketches.gap import GapEstimator
from sketches.protocol import FrequencyEstimator

_PHANTOMS: Final = 1 << 14
_SEED: Final = 0x5EED


def log_q_error(estimator: FrequencyEstimator) -> float:
    """Occurrence-weighted mean absolute error of log Q that collisions cause, estimated from phantom keys.

    The sampling noise of rare keys and the lag behind a drift are not part of it. Of a `FrequencyBank`, the sketch
    with the longest half-life is measured, which most keys are read from. An `ExactCounter` has no collisions.

    Raises
    ------
    ValueError
        For an estimator of another class.
    """
    if isinstance(estimator, ExactCounter):
        return 0.0
    if isinstance(estimator, FrequencyBank):
        return log_q_error(estimator.longest)
    if not isinstance(estimator, CountMinSketch | GapEstimator):
        raise ValueError(f"no error estimate for a {type(estimator).__name__}")
    if estimator.total <= 0.0:
        return 0.0
    rng = np.random.default_rng(_SEED)
    noise = estimator.estimate(rng.integers(-(2**63), 2**63 - 1, _PHANTOMS))
    cells = estimator.cell_counts()
    if isinstance(estimator, CountMinSketch) and estimator.conservative:
        counts = np.concatenate([_from_largest(row, n, estimator.total) for row, n in _shared_out(cells)])
        saving = 1.0 + estimator.depth * math.sqrt(1.0 - estimator.fill)
    else:
        picked = np.concatenate([_at_events(row, row, n, float(row.sum())) for row, n in _shared_out(cells)])
        counts = rng.permutation(picked) - rng.choice(cells.ravel(), _PHANTOMS)
        saving = 1.0
    # Whatever occurs now has been counted at least once.
    return float(np.log1p(noise / np.maximum(rng.permutation(counts), 1.0)).mean()) / saving


def _shared_out(cells: Floats) -> list[tuple[Floats, int]]:
    """Rows of the table and how many of the phantoms each is compared with."""
    return [(row, part.size) for row, part in zip(cells, np.array_split(np.arange(_PHANTOMS), len(cells)), strict=True)]


def _from_largest(row: Floats, count: int, total: float) -> Floats:
    """Find the counts of the keys of ``count`` evenly spaced events; each cell holds the largest count of its keys."""
    falling = np.sort(row)[:0:-1]
    rank = np.arange(row.size, 1, -1)
    keys = row.size * np.log(rank / (rank - 1.0))
    return _at_events(falling, keys * falling, count, total)


def _at_events(values: Floats, masses: Floats, count: int, total: float) -> Floats:
    """Values at ``count`` evenly spaced points of the ``total`` mass; 0 where the masses do not reach so far."""
    events = (np.arange(count) + 0.5) / count * total
    reached = np.searchsorted(np.cumsum(masses), events, side="right")
    return np.append(values, 0.0)[reached]
