"""Frequency estimators for streams: how often an item occurs, in bounded memory, as log Q.

Imports nothing of the other packages. Keys are int64 arrays (``xxh3_64`` of an id), weights float64.
"""

from sketches.bank import FrequencyBank
from sketches.count_min import CountMinSketch
from sketches.distinct import DistinctCounter
from sketches.drift import Counted, head_distance, jensen_shannon, unseen_share
from sketches.exact import ExactCounter
from sketches.gap import GapEstimator
from sketches.health import Health, health, log_q_error, parameters
from sketches.loading import load
from sketches.protocol import FrequencyEstimator
from sketches.view import FrequencyView, merge_fading

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
