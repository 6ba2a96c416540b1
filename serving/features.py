"""Parse and validate the user features of a query, in time linear in their bytes."""

from collections.abc import Callable, Sequence

import numpy as np

from weir.contracts import MAX_ID_BYTES
from weir.contracts.features import MAX_VALUES
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.said import NO_FEATURES, Features

__all__ = ["feature_values", "features_of"]

Fault = Callable[[str, str], None]
"""Takes the path of a faulty field, and the problem."""


def feature_values(queries: Sequence[pb.Query]) -> int:
    """Count the values of all features; a number or a feature without values counts as one."""
    return sum(max(len(one.values), 1) for query in queries for one in query.features.values())


def features_of(path: str, query: pb.Query, fault: Fault) -> Features:
    """Return the features of a query, sorted by name; report problems to `fault`."""
    if not query.features:
        return NO_FEATURES
    if query.WhichOneof("source") in {"embedding", "item_id"}:
        fault(f"{path}.features", "are given with an embedding or an item_id, allowed are user_id and history")
    found: dict[str, tuple[str, ...] | float] = {}
    # A protobuf map has no order: without sorting, equal requests could get different answers.
    for name, one in sorted(query.features.items()):
        place = f'{path}.features["{name}"]'
        if not name or _is_long(name):
            fault(place, f"has a name of {len(name.encode())} bytes, allowed are 1 to {MAX_ID_BYTES}")
        if one.HasField("number") == bool(one.values):
            came = "both values and a number" if one.values else "neither values nor a number"
            fault(place, f"has {came}, must have one of them")
        elif one.HasField("number"):
            found[name] = _number(place, one.number, fault)
        else:
            found[name] = _values(place, one.values, fault)
    return found


def _number(place: str, number: float, fault: Fault) -> float:
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(number)):
            fault(place, f"is {number}, must be a finite number (32 bits)")
    return number


def _values(place: str, values: Sequence[str], fault: Fault) -> tuple[str, ...]:
    if len(values) > MAX_VALUES:
        fault(place, f"has {len(values)} values, at most {MAX_VALUES} are allowed")
        return ()
    if longest := max((len(value.encode()) for value in values if _is_long(value)), default=0):
        fault(place, f"has a value of {longest} bytes, at most {MAX_ID_BYTES} are allowed")
    return tuple(values)


def _is_long(text: str) -> bool:
    # A character has at most four bytes.
    return len(text) > MAX_ID_BYTES // 4 and len(text.encode()) > MAX_ID_BYTES
