"""Messages as JSON, by the mapping of protobuf, within the limits of a request."""

import json
from typing import Any, Final, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from weir.serving.errors import InvalidRequestError, NotJsonError, Violation

__all__ = ["as_json", "message_of", "object_of"]

Request = TypeVar("Request", bound=Message)

_PER_FIELD: Final = 4
"""Commas and brackets that a field may bring, those within its text included."""


def message_of(data: bytes, empty: Request, fields: int, numbers: int) -> Request:
    """Fill an empty message from JSON; its names may be spelt as in JSON or as in the .proto file.

    A message of at most `fields` fields and `numbers` values of vectors is within the limits. More is refused before an
    object is made of it: a megabyte of ``[],[],...`` would take a hundred.

    Raises `NotJsonError` for what is no such message, `InvalidRequestError` for one beyond the limits.
    """
    if sum(map(data.count, (b",", b"{", b"["))) > _PER_FIELD * fields + numbers:
        raise InvalidRequestError([Violation("", f"the request holds more than {fields} fields: see /v1/info, limits")])
    try:
        return json_format.ParseDict(object_of(data or b"{}"), empty)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def object_of(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is; raises `NotJsonError`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from None
    if not isinstance(found, dict):
        raise NotJsonError(f"an object is wanted, {type(found).__name__} came")
    return found


def as_json(message: Message) -> bytes:
    """Write a message; fields without a value are there, too, so that an answer always looks the same."""
    return json_format.MessageToJson(message, always_print_fields_with_no_presence=True, indent=None).encode()
