"""Read a stored frequency estimator of any kind."""

from typing import Final

from weir.sketches.bank import FrequencyBank
from weir.sketches.codec import Kind, decode
from weir.sketches.count_min import CountMinSketch
from weir.sketches.exact import ExactCounter
from weir.sketches.gap import GapEstimator
from weir.sketches.protocol import FrequencyEstimator

_READERS: Final[dict[Kind, type[FrequencyEstimator]]] = {
    Kind.COUNT_MIN: CountMinSketch,
    Kind.EXACT: ExactCounter,
    Kind.GAP: GapEstimator,
    Kind.BANK: FrequencyBank,
}


def load(data: bytes) -> FrequencyEstimator:
    """Build an estimator of the kind in the header of ``data``.

    Raises
    ------
    ValueError
        For foreign, truncated or altered bytes, and for a stored sketch that does not estimate frequencies.
    """
    kind = decode(data).kind
    if kind not in _READERS:
        raise ValueError(f"a stored {kind.name} sketch does not estimate frequencies")
    return _READERS[kind].from_bytes(data)
