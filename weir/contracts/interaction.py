"""Contract 1, the interaction: one line of the log, and the rules for its values.

Raw ids are non-empty UTF-8 strings; timestamps are event time in milliseconds since 1970 (UTC).
"""

from enum import IntEnum
from typing import Final

import pyarrow as pa

from weir.contracts import columns
from weir.contracts.features import NO_FEATURES, FeatureNames

__all__ = ["INTERACTION_SCHEMA", "MAX_ID_BYTES", "Label", "interaction_schema"]

MAX_ID_BYTES: Final = 512
"""Longest id in UTF-8 bytes; a longer one is a fault of the producer and goes to the dead letters."""


class Label(IntEnum):
    """What an event type means."""

    POSITIVE = 1
    NEGATIVE = -1
    IGNORE = 0


INTERACTION_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.USER_ID, pa.string(), nullable=False),
        pa.field(columns.ITEM_ID, pa.string(), nullable=False),
        pa.field(columns.TIMESTAMP, pa.int64(), nullable=False),
        pa.field(columns.EVENT_ID, pa.string()),
        pa.field(columns.LABEL, pa.int8(), nullable=False),
        pa.field(columns.WEIGHT, pa.float32(), nullable=False),
        pa.field(columns.ATTRIBUTION_TOKEN, pa.string()),
        pa.field(columns.POSITION, pa.int64(), nullable=False),
    ]
)
"""A validated interaction; `position` is its place in the source partition (byte offset or row number)."""


def interaction_schema(features: FeatureNames, user_features: FeatureNames = NO_FEATURES) -> pa.Schema:
    """Return `INTERACTION_SCHEMA`, with structs of the item features and of the user features of the row, if any."""
    structs = ((columns.FEATURES, features), (columns.USER_FEATURES, user_features))
    fields = [pa.field(name, pa.struct(names.fields), nullable=False) for name, names in structs if names.all]
    return pa.schema([*INTERACTION_SCHEMA, *fields]) if fields else INTERACTION_SCHEMA
