"""Frequency estimators for streams: counts of items in bounded memory, as log Q.

Imports no other package of the project. Keys are int64 arrays (``xxh3_64`` of an id), weights float64.
"""

from weir.sketches.bank import FrequencyBank
from weir.sketches.count_min import CountMinSketch
from weir.sketches.distinct import DistinctCounter
from weir.sketches.drift import Counted, head_distance, jensen_shannon, unseen_share
from weir.sketches.exact import ExactCounter
from weir.sketches.gap import GapEstimator
from weir.sketches.health import Health, health, log_q_error, parameters
from weir.sketches.loading import load
from weir.sketches.protocol import FrequencyEstimator
from weir.sketches.view import FrequencyView, merge_fading

__all__ = [
    "CountMinSketch",
    "Counted",
    "DistinctCounter",
    "ExactCounter",
    "FrequencyBank",
    "FrequencyEstimator",
    "FrequencyView",
    "GapEstimator",
    "Health",
    "head_distance",
    "health",
    "jensen_shannon",
    "load",
    "log_q_error",
    "merge_fading",
    "parameters",
    "unseen_share",
]
