"""Why a row is refused: stable reasons, and the dead letter that keeps the row."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["HINTS", "DeadLetter", "Fault", "Reason"]

_RAW_BYTES = 1024


class Reason(StrEnum):
    """Stable codes: dashboards and alerts name them."""

    MALFORMED_JSON = "malformed_json"
    MALFORMED_ROW = "malformed_row"
    MALFORMED_PROTOBUF = "malformed_protobuf"
    MALFORMED_AVRO = "malformed_avro"
    NOT_UTF8 = "not_utf8"
    NOT_AN_OBJECT = "not_an_object"
    LINE_TOO_LONG = "line_too_long"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    REPEATED_FIELD = "repeated_field"
    EMPTY_ID = "empty_id"
    MISSING_ID = "missing_id"
    ID_TOO_LONG = "id_too_long"
    TOKEN_TOO_LONG = "token_too_long"  # noqa: S105 - a reason, no secret
    UNPARSABLE_TIMESTAMP = "unparsable_timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp_out_of_range"
    AHEAD_OF_ARRIVAL = "ahead_of_arrival"
    NEGATIVE_WEIGHT = "negative_weight"
    NON_FINITE_WEIGHT = "non_finite_weight"
    WEIGHT_TOO_LARGE = "weight_too_large"
    UNKNOWN_EVENT_TYPE = "unknown_event_type"
    FEATURE_TOO_LONG = "feature_too_long"
    NON_FINITE_FEATURE = "non_finite_feature"
    UNREADABLE_FILE = "unreadable_file"
    TRUNCATED_GZIP = "truncated_gzip"
    KEY_COLLISION = "key_collision"
    REWRITTEN_FILE = "rewritten_file"
    UNREADABLE_BLOCK = "unreadable_block"
    BEFORE_RETENTION = "before_retention"


HINTS: Final[Mapping[str, str]] = {
    Reason.MALFORMED_JSON: "each line must hold one JSON object; CSV and TSV are read from .csv and .tsv files",
    Reason.WRONG_TYPE: "ids are strings or integers; another column is named with pipeline.columns, and a feature that "
    "is no number is categorical (pipeline.item_features, pipeline.user_features)",
    Reason.MISSING_ID: "pipeline.missing_ids lists the texts that stand for no id",
    Reason.MISSING_FIELD: "`weir check LOG` proposes the columns",
    Reason.UNPARSABLE_TIMESTAMP: "times are numbers (s, ms, us or ns since 1970) or texts such as 2026-03-01 08:00:41, "
    "whose zone is pipeline.time_zone=UTC where they name none; others, such as 01.03.2026, must be converted first",
    Reason.TIMESTAMP_OUT_OF_RANGE: "pipeline.min_time and pipeline.max_time say which times are valid, "
    "pipeline.timestamp_unit what numbers mean",
    Reason.AHEAD_OF_ARRIVAL: "pipeline.clock_tolerance_minutes is how far times may be ahead of their file's",
    Reason.WEIGHT_TOO_LARGE: "pipeline.max_weight is the largest weight",
    Reason.UNKNOWN_EVENT_TYPE: "pipeline.event_types names them, pipeline.unknown_event_type says what others mean",
    Reason.BEFORE_RETENTION: "pipeline.retention_days is the age at which windows retire",
}
"""Reason -> what mends it, where it is the reason for most rows of a log."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row: the code, and a sentence that says what came and what is allowed."""

    reason: Reason
    detail: str


class DeadLetter(msgspec.Struct, frozen=True):
    """A refused row, as a line of ``dead-letters/<partition>/<position of the block>-<token>-<run>.jsonl``.

    `raw` is its first KiB: text, or base64 where `encoding` says so; `size` is the row's full length in bytes.
    """

    partition: str
    position: int
    reason: str
    detail: str
    raw: str
    encoding: str
    size: int

    @classmethod
    def of(cls, partition: str, position: int, fault: Fault, raw: bytes) -> "DeadLetter":
        """Return the letter for a row."""
        text, encoding = _spell(raw)
        return cls(partition, position, str(fault.reason), fault.detail, text, encoding, len(raw))


def _spell(raw: bytes) -> tuple[str, str]:
    head = raw[:_RAW_BYTES]
    try:
        return head.decode(), "utf-8"
    except UnicodeDecodeError as error:
        # A character cut in half by the limit does not make the text binary.
        if len(raw) > _RAW_BYTES and error.start > _RAW_BYTES - 4:
            return head[: error.start].decode(), "utf-8"
    return base64.b64encode(head).decode(), "base64"
