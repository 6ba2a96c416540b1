"""Health metrics of an estimator: fill, number of distinct keys, and error of log Q.

The error of log Q is estimated from the sketch alone, without the true counts, by means of phantoms: keys that never
occurred. The estimate of a phantom is collision noise, e. Similar noise is added to the real counts c, whose log Q is
then off by ``log(1 + e / c)``. The counts, weighted by occurrence, are recovered from the cells:

- In a linear sketch a cell holds a sum. A cell picked with probability proportional to its content is the cell of a
  random event, and holds c plus the content of any other cell, which is subtracted.
- In a conservative sketch a cell holds about the largest count of its keys. If K(t) keys count more than t, a share
  ``exp(-K(t) / width)`` of the cells is at most t, so that the sorted cells give K, the number of keys by count.

A conservative update also adds less noise the emptier the table is: at low load a key must come last of the
depth + 1 keys that share its cells. Merging undoes this: cells of several parts add up, and a key that is absent from a
part has no protection there. How far a sketch has moved from largest counts to sums shows in its cells. Read
as largest counts, the cells of a sketch that was never merged account for all its events, and sums account for more;
in a row, sums hold all events and largest counts fewer. `_merging` places a sketch between the two, and the
noise reduction is interpolated. The constants were fitted to 1,076 sketches: nine streams (four logs of shops and
ratings, Zipf .8 to 1.3, equal counts, few frequent items), 2 to 6 rows, .75 to 10 cells per key, whole or merged from 2
to 32 parts by chance, by time or by key; the estimate was .58 to 1.76 times the truth on all.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from weir.sketches.bank import FrequencyBank
from weir.sketches.count_min import CountMinSketch
from weir.sketches.exact import ExactCounter
from weir.sketches.gap import GapEstimator
from weir.sketches.protocol import Floats, FrequencyEstimator, parameters_of

__all__ = ["Health", "health", "parameters"]


_KINDS = {ExactCounter: "exact", CountMinSketch: "count_min", GapEstimator: "gap", FrequencyBank: "bank"}


_PHANTOMS: Final = 1 << 14
_SEED: Final = 0x5EED


class Health(NamedTuple):
    """Health metrics; for a `FrequencyBank`, of its longest half-life.

    `total` is in (decayed) events, `distinct` the number of keys ever counted, `fill` the share of cells in use,
    `log_q_error` the mean error of log Q over occurrences (see the function `log_q_error`).
    """

    total: float
    distinct: float
    fill: float
    log_q_error: float


def health(estimator: FrequencyEstimator) -> Health:
    """Return the health of an estimator; raises `ValueError` for an unsupported class."""
    if isinstance(estimator, FrequencyBank):
        return health(estimator.longest)
    if isinstance(estimator, ExactCounter):
        return Health(estimator.total, len(estimator), estimator.fill, 0.0)
    if not isinstance(estimator, CountMinSketch | GapEstimator):
        raise ValueError(f"no metrics for a {type(estimator).__name__}")
    cells = estimator.cell_counts()
    fill = float(np.count_nonzero(cells)) / cells.size
    return Health(estimator.total, _distinct(cells), fill, log_q_error(estimator))


def parameters(estimator: FrequencyEstimator) -> dict[str, object]:
    """Return the kind and all parameters of an estimator; estimators with equal parameters can be merged."""
    if type(estimator) not in _KINDS:
        raise ValueError(f"no parameters of a {type(estimator).__name__}")
    return {"kind": _KINDS[type(estimator)]} | parameters_of(estimator)


def _distinct(cells: Floats) -> float:
    """Estimate the number of keys from the empty cells of a table (depth, width).

    Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm for database
    applications", 1990), as the mean over rows. A row without an empty cell counts as one with half a cell empty:
    the number is then a lower bound.
    """
    width = cells.shape[1]
    empty = np.maximum((cells == 0).sum(axis=1), 0.5)
    return float((width * np.log(width / empty)).mean())


def log_q_error(estimator: FrequencyEstimator) -> float:
    """Return the occurrence-weighted mean absolute error of log Q caused by collisions, estimated from phantom keys.

    Measured to be within a factor of 2 of the truth, also for merged sketches, as long as most events are on keys whose
    counts have not decayed below one event. Sampling noise of rare keys and lag behind a drift are not
    included. For a `FrequencyBank`, it is the error of the sketch with the longest half-life, which most keys use;
    for an `ExactCounter`, which has no collisions, 0.

    Raises
    ------
    ValueError
        For an estimator of an unsupported class.
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
        counts = np.concatenate(
            [_at_events(*_largest(row), n, estimator.total) for row, n in _rows_with_phantoms(cells)]
        )
        saving = _saving(estimator, _merging(cells, estimator.total))
    else:
        picked = np.concatenate([_at_events(row, row, n, float(row.sum())) for row, n in _rows_with_phantoms(cells)])
        counts = rng.permutation(picked) - rng.choice(cells.ravel(), _PHANTOMS)
        saving = 1.0
    # A key that occurs now has been counted at least once.
    return float(np.log1p(noise / np.maximum(rng.permutation(counts), 1.0)).mean()) / saving


def _rows_with_phantoms(cells: Floats) -> list[tuple[Floats, int]]:
    """Return each row of the table with its share of the phantoms, as evenly as possible."""
    return [(row, part.size) for row, part in zip(cells, np.array_split(np.arange(_PHANTOMS), len(cells)), strict=True)]


def _largest(row: Floats) -> tuple[Floats, Floats]:
    """Read a row's cells as largest counts: each cell holds the count of its most frequent key.

    Returns key counts, descending, and the number of events of all keys with each count.
    """
    falling = np.sort(row)[:0:-1]
    rank = np.arange(row.size, 1, -1)
    return falling, row.size * np.log(rank / (rank - 1.0)) * falling


def _merging(cells: Floats, total: float) -> float:
    """Return the degree to which merging has turned cells (depth, width) from largest counts (0) into sums (1)."""
    read_as_largest = float(np.mean([_largest(row)[1].sum() for row in cells])) / total
    held = float(cells.sum(axis=1).mean()) / total
    span = read_as_largest - held
    return min(1.0, max(0.0, (read_as_largest - 1.0) / span)) if span > 1e-9 else 0.0


def _saving(sketch: CountMinSketch, merging: float) -> float:
    """Return the ratio of the noise of phantoms to the noise of real keys in a conservative sketch."""
    empty = math.sqrt(1.0 - sketch.fill)
    share: float = merging**0.7
    return float((1.8 + sketch.depth * empty) ** (1.0 - share) * (0.25 + 0.4 * empty) ** share)


def _at_events(values: Floats, masses: Floats, count: int, total: float) -> Floats:
    """Return quantiles of `values` (n,), weighted by `masses` (n,), at ``count`` evenly spaced points of ``total``.

    Points beyond the sum of the masses give 0.
    """
    events = (np.arange(count) + 0.5) / count * total
    reached = np.searchsorted(np.cumsum(masses), events, side="right")
    return np.append(values, 0.0)[reached]
