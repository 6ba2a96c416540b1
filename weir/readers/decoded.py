"""What decoding makes of raw rows, whatever their format."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir.contracts import columns
from weir.readers.blocks import Bool, Int64
from weir.readers.faults import Fault
from weir.readers.features import Features
from weir.readers.timestamps import Millis

__all__ = ["TEXTS", "Decoded", "Faults"]

Faults = list[tuple[int, Fault, bytes] | tuple[int, Fault, bytes, int | None]]
"""Refused rows: position, fault, raw bytes, and the event time in ms where it is known."""

TEXTS = (columns.USER_ID, columns.ITEM_ID, columns.EVENT_ID, columns.EVENT_TYPE, columns.ATTRIBUTION_TOKEN)
"""The fields of which `Decoded` has the text."""


@dataclass
class Decoded:
    """Columns of n rows.

    `weights` are numbers, and which of the log's are none. `timeless` marks rows without a timestamp, `value` returns
    what the log has of a field in a row, `raw` a row's bytes; `refused` are the rows that did not decode.
    """

    texts: dict[str, pa.Array]
    weights: tuple[pa.Array, Bool]
    millis: Millis
    positions: Int64
    timeless: Bool
    value: Callable[[str, int], Any]
    raw: Callable[[int], bytes]
    refused: Faults = field(default_factory=list)
    features: Features = field(default_factory=dict)
