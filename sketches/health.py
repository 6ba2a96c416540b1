"""What an estimator knows about itself: how full it is, of how many keys, and how wrong its log Q."""

from typing import NamedTuple

import numpy as np

from sketches.arrays import Floats
from sketches.bank import FrequencyBank
from sketches.count_min import CountMinSketch
from sketches.exact import ExactCounter
from sketches.gap import GapEstimator
from sketches.monitor import log_q_error
from sketches.protocol import FrequencyEstimator, parameters_of

__all__ = ["Health", "health", "parameters"]


_KINDS = {ExactCounter: "exact", CountMinSketch: "count_min", GapEstimator: "gap", FrequencyBank: "bank"}


class Health(NamedTuple):
    """Metrics to watch; of a `FrequencyBank`, those of its longest half-life.

    `total` is in (decayed) events, `distinct` the number of keys ever counted, `fill` the share of cells in use,
    `log_q_error` the occurrence-weighted mean error of log Q (see `sketches.log_q_error`).
    """

    total: float
    distinct: float
    fill: float
    log_q_error: float


def health(estimator: FrequencyEstimator) -> Health:
    """Examine an estimator; raises `ValueError` for one of another class."""
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
    """Return the kind and all parameters of an estimator; two of equal parameters can be merged."""
    if type(estimator) not in _KINDS:
        raise ValueError(f"no parameters of a {type(estimator).__name__}")
    return {"kind": _KINDS[type(estimator)]} | parameters_of(estimator)


def _distinct(cells: Floats) -> float:
    """Estimate the number of keys from the cells (depth, width) that none of them hit.

    Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm for database
    applications", 1990), as the mean over rows. A row without any empty cell is taken for one with half a cell empty:
    the number is then a lower bound.
    """
    width = cells.shape[1]
    empty = np.maximum((cells == 0).sum(axis=1), 0.5)
    return float((width * np.log(width / empty)).mean())
