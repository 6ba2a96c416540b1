import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from weir.log.v1.interaction_pb2 import Interaction
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.kafka.lines import line_of_protobuf, to_line
from weir.readers import Fault, LogColumns, Reason

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "user_id": TEXTS,
        "item_id": TEXTS,
        "timestamp_ms": st.integers(-(1 << 63), (1 << 63) - 1),
        "event_id": TEXTS,
        "event_type": TEXTS,
        "weight": st.floats(allow_nan=False, allow_infinity=False),
        "attribution_token": TEXTS,
    },
)


@given(FIELDS)
def test_a_message_means_the_line_with_the_fields_that_are_set(fields: dict[str, Any]) -> None:
    line = line_of_protobuf(LogColumns(user_id="who", timestamp="at"))(Interaction(**fields).SerializeToString())
    assert isinstance(line, bytes)
    renamed = {"user_id": "who", "timestamp_ms": "at"}
    assert json.loads(line) == {renamed.get(name, name): value for name, value in fields.items()}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_line_or_a_fault(value: bytes) -> None:
    found = line_of_protobuf(LogColumns())(value)
    try:
        is_finite = abs(Interaction.FromString(value).weight) < float("inf")
    except DecodeError:
        assert isinstance(found, Fault)
        assert found.reason is Reason.MALFORMED_PROTOBUF
    else:
        assert isinstance(found, bytes) == is_finite


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_that_no_line_could_have_is_a_fault(weight: float) -> None:
    found = line_of_protobuf(LogColumns())(Interaction(weight=weight).SerializeToString())
    assert isinstance(found, Fault)
    assert found.reason is Reason.NON_FINITE_WEIGHT


def test_json_is_lines_already() -> None:
    assert to_line(PipelineConfig()) is None
    assert to_line(PipelineConfig.model_validate({"kafka": {"format": "protobuf"}})) is not None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"timestamp_unit": "s"}, "timestamp_unit is s, but the messages have milliseconds"),
        ({"item_features": {"dense": ["price"]}}, "item_features names price, but the messages have none"),
        ({"user_features": {"dense": ["age"]}}, "user_features names age, but the messages have none"),
    ],
)
def test_settings_that_messages_cannot_meet_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig.model_validate(settings | {"kafka": {"format": "protobuf"}})
