"""What decoding makes of raw rows, whatever their format."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.contracts import columns
from weir.readers.blocks import Int64
from weir.readers.faults import Fault
from weir.readers.features import Features
from weir.readers.timestamps import Millis

__all__ = ["TEXTS", "Decoded", "Faults"]

Faults = list[tuple[int, Fault, bytes]]

TEXTS = (columns.USER_ID, columns.ITEM_ID, columns.EVENT_ID, columns.EVENT_TYPE, columns.ATTRIBUTION_TOKEN)
"""The fields of which `Decoded` has the text."""


@dataclass
class Decoded:
    """Columns of n rows.

    `timeless` marks rows without a timestamp, `raw` returns a row's bytes, `refused` are the rows that did not decode.
    """

    texts: dict[str, pa.Array]
    weights: pa.Array
    millis: Millis
    positions: Int64
    timeless: npt.NDArray[np.bool_]
    raw: Callable[[int], bytes]
    refused: Faults = field(default_factory=list)
    features: Features = field(default_factory=dict)
