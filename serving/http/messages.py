"""Convert protobuf messages from and to JSON, within the limits of a request."""

import json
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from weir.serving.errors import InvalidRequestError, NotJsonError, Violation

__all__ = ["as_json", "message_of", "object_of"]

Request = TypeVar("Request", bound=Message)

_PER_FIELD: Final = 4
"""Commas and brackets allowed per field, including those within its text."""


def message_of(data: bytes, empty: Request, fields: int, numbers: int) -> Request:
    """Fill an empty message from JSON; field names may be spelt as in JSON or as in the .proto file.

    The limits are `fields` fields and `numbers` values of vectors. A larger message is refused before it is parsed: a
    megabyte of ``[],[],...`` would take a hundred.

    Raises `NotJsonError` if it is not such a message, `InvalidRequestError` if it exceeds the limits.
    """
    if sum(map(data.count, (b",", b"{", b"["))) > _PER_FIELD * fields + numbers:
        raise InvalidRequestError([Violation("", f"the request holds more than {fields} fields: see /v1/info, limits")])
    try:
        return json_format.ParseDict(object_of(data or b"{}"), empty)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def object_of(data: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object; raises `NotJsonError`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(found, dict):
        raise NotJsonError(f"an object is wanted, {type(found).__name__} came")
    return found


def as_json(message: Message) -> bytes:
    """Convert a message to JSON; fields without a value are included, so that all answers have the same fields."""
    return json_format.MessageToJson(message, always_print_fields_with_no_presence=True, indent=None).encode()
