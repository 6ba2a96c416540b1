import json
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.pipelines.sources.kafka.schema_registry import SchemaRegistry, schema_registry
from tests.ports import free_port
from weir.pipelines.config import PipelineConfig
from weir.pipelines.kafka_config import BrokerAwayError, KafkaSettingsError
from weir.pipelines.sources.kafka.avro import AvroLines, registry_of
from weir.readers import BlockId, Fault, Lines, Reason
from weir.readers.blocks import Block
from weir.readers.validate import Validator

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CLICK: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user_id", "type": "string"},
        {"name": "item_id", "type": ["string", "long"]},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "event_type", "type": ["null", {"type": "enum", "name": "Kind", "symbols": ["PLAY", "SKIP"]}]},
        {"name": "weight", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
ROWS = st.fixed_dictionaries(
    {
        "user_id": TEXTS,
        "item_id": TEXTS | st.integers(-(1 << 63), (1 << 63) - 1),
        "timestamp": st.integers(0, 4_102_444_800_000),
        "event_type": st.sampled_from([None, "PLAY", "SKIP"]),
        "weight": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(TEXTS, max_size=3),
    }
)


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_known(registry: SchemaRegistry) -> None:
    registry_of.cache_clear()
    registry.status, registry.password = 200, None


def lines(registry: SchemaRegistry, **settings: Any) -> AvroLines:
    kafka = {"format": "avro", "registry": {"url": registry.url}, "timeout_seconds": 2}
    return AvroLines(PipelineConfig.model_validate({"kafka": kafka} | settings))


def written(schema: dict[str, Any], value: Any, number: int) -> bytes:
    """Return a message as fastavro alone writes it."""
    content = BytesIO()
    schemaless_writer(content, parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + content.getvalue()


def fault(found: bytes | Fault) -> Fault:
    assert isinstance(found, Fault)
    return found


@given(rows=st.lists(ROWS, min_size=1, max_size=5))
def test_what_confluent_s_serialiser_writes_is_the_line_with_the_same_fields(
    registry: SchemaRegistry, rows: list[dict[str, Any]]
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    write, context = AvroSerializer(client, json.dumps(CLICK)), SerializationContext("clicks", MessageField.VALUE)
    read = lines(registry)
    for row in rows:
        message = write(row, context)
        assert message is not None
        found = read(message)
        assert isinstance(found, bytes)
        assert json.loads(found) == row


def test_features_of_users_are_fields_of_a_record_by_the_rules_of_lines(registry: SchemaRegistry) -> None:
    ids = [{"name": name, "type": "string"} for name in ("user_id", "item_id")]
    said = [{"name": "lives", "type": ["null", "string"]}, {"name": "age", "type": ["null", "double", "string"]}]
    tags = {"name": "tags", "type": {"type": "array", "items": "string"}}
    fields = [*ids, {"name": "timestamp", "type": "long"}, *said, tags]
    schema = {"type": "record", "name": "Told", "fields": fields}
    number = registry.register("told", {"schema": json.dumps(schema)})
    named = {"categorical": ["lives", "tags"], "dense": ["age"]}
    read = lines(registry, user_features=named)
    plain = {"user_id": "u", "item_id": "i", "timestamp": 1_700_000_000}
    told = [("street", 7.5, ["a", "b"]), (None, None, []), ("", "old", []), (None, 1.0, ["a"] * 65)]
    rows = [plain | {"lives": lives, "age": age, "tags": tags} for lives, age, tags in told]
    spelled = [line for row in rows if isinstance(line := read(written(schema, row, number)), bytes)]
    block = Block(BlockId("topic", 0), Lines(spelled, np.arange(len(rows))))
    valid, letters = Validator(PipelineConfig(user_features=named)).validate(block)
    assert valid.rows["user_features"].to_pylist() == [
        {"lives": ["street"], "tags": ["a", "b"], "age": 7.5},
        {"lives": None, "tags": [], "age": None},
    ]
    assert [(letter.position, letter.reason) for letter in letters.letters] == [
        (2, Reason.WRONG_TYPE),
        (3, Reason.FEATURE_TOO_LONG),
    ]
    assert [word in letter.detail for word, letter in zip(("age", "tags"), letters.letters, strict=True)] == [True] * 2


@given(value=st.binary(max_size=60))
def test_any_bytes_are_a_line_or_a_fault(registry: SchemaRegistry, value: bytes) -> None:
    number = registry.register("clicks-value", {"schema": json.dumps(CLICK)})
    found = lines(registry)(b"\0" + number.to_bytes(4, "big") + value)
    if isinstance(found, Fault):
        assert found.reason in {Reason.MALFORMED_AVRO, Reason.NON_FINITE_WEIGHT}
    else:
        assert set(json.loads(found)) == {one["name"] for one in CLICK["fields"]}


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (b"", "0 bytes that start with ; expected 00 and a schema's number"),
        (b'{"user_id": "u"}', "16 bytes that start with 7b; expected 00"),
        (b"\0\0\0\0\x01", "5 bytes that start with 00"),
        (b"\0\0\0\x99\x99x", "has no schema 39321"),
    ],
)
def test_what_names_no_schema_is_a_fault(registry: SchemaRegistry, value: bytes, detail: str) -> None:
    found = fault(lines(registry)(value))
    assert found.reason is Reason.MALFORMED_AVRO
    assert detail in found.detail


def test_a_record_that_ends_early_or_late_is_a_fault(registry: SchemaRegistry) -> None:
    number = registry.register("ends", {"schema": json.dumps(CLICK)})
    row = {"user_id": "u", "item_id": "i", "timestamp": 1, "event_type": None, "weight": 2.0, "tags": []}
    good, read = written(CLICK, row, number), lines(registry)
    assert isinstance(read(good), bytes)
    assert "no record of its schema" in fault(read(good[:-4])).detail
    assert "2 bytes follow the record; expected none" in fault(read(good + b"zz")).detail


@pytest.mark.parametrize("of", ["item_features", "user_features"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_no_line_could_have_is_a_fault(registry: SchemaRegistry, number: float, of: str) -> None:
    schema = {
        "type": "record",
        "name": "Priced",
        "fields": [{"name": "weight", "type": "double"}, {"name": "price", "type": "float"}],
    }
    place = registry.register("priced", {"schema": json.dumps(schema)})
    read = lines(registry, **{of: {"dense": ["price"]}})
    heavy = written(schema, {"weight": number, "price": 1.0}, place)
    dear = written(schema, {"weight": 1.0, "price": number}, place)
    assert fault(read(heavy)).reason is Reason.NON_FINITE_WEIGHT
    assert fault(read(dear)).reason is Reason.NON_FINITE_FEATURE


def test_decimals_are_numbers(registry: SchemaRegistry) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    schema = {"type": "record", "name": "Exact", "fields": [{"name": "weight", "type": decimal}]}
    place = registry.register("exact", {"schema": json.dumps(schema)})
    assert lines(registry)(written(schema, {"weight": Decimal("1.25")}, place)) == b'{"weight":1.25}'


def test_schemas_may_refer_to_others(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    unit = {"type": "record", "name": "Unit", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}
    size = {
        "type": "record",
        "name": "Size",
        "namespace": "shop",
        "fields": [{"name": "value", "type": "long"}, {"name": "unit", "type": "shop.Unit"}],
    }
    event = {
        "type": "record",
        "name": "Event",
        "namespace": "shop",
        "fields": [{"name": "size", "type": "shop.Size"}, {"name": "unit", "type": "shop.Unit"}],
    }
    client.register_schema("unit", Schema(json.dumps(unit), "AVRO"))
    client.register_schema("size", Schema(json.dumps(size), "AVRO", [SchemaReference("shop.Unit", "unit", 1)]))
    # One of them by two ways.
    references = [SchemaReference("shop.Size", "size", 1), SchemaReference("shop.Unit", "unit", 1)]
    write = AvroSerializer(client, Schema(json.dumps(event), "AVRO", references))
    row = {"size": {"value": 3, "unit": {"name": "cm"}}, "unit": {"name": "kg"}}
    message = write(row, SerializationContext("events", MessageField.VALUE))
    assert message is not None
    found = lines(registry)(message)
    assert isinstance(found, bytes)
    assert json.loads(found) == row


def test_a_schema_is_asked_for_once_and_so_is_one_that_is_not_there(registry: SchemaRegistry) -> None:
    number = registry.register("once", {"schema": '"string"'})
    read, before = lines(registry), registry.asked
    for _ in range(3):
        assert read(written("string", "text", number)) == b'"text"'  # type: ignore[arg-type]
        fault(read(b"\0\xff\0\0\0x"))
    assert registry.asked == before + 2


def test_schemas_of_other_types_are_faults(registry: SchemaRegistry) -> None:
    number = registry.register("other", {"schema": "syntax = ...", "schemaType": "PROTOBUF"})
    found = fault(lines(registry)(b"\0" + number.to_bytes(4, "big") + b"x"))
    assert found.detail == f"schema {number} is of type PROTOBUF; allowed is AVRO"


@pytest.mark.parametrize("status", [500, 401])
def test_a_registry_that_does_not_answer_judges_nothing(registry: SchemaRegistry, status: int) -> None:
    number = registry.register("away", {"schema": '"string"'})
    read, message = lines(registry), b"\0" + number.to_bytes(4, "big") + b"\x02a"
    registry.status = status
    with pytest.raises(BrokerAwayError, match=f"schema registry {registry.url}"):
        read(message)
    registry.status = 200
    assert read(message) == b'"a"'


def test_a_registry_that_nobody_runs_judges_nothing() -> None:
    kafka = {"format": "avro", "registry": {"url": f"http://127.0.0.1:{free_port()}"}, "timeout_seconds": 2}
    with pytest.raises(BrokerAwayError, match="does not answer"):
        AvroLines(PipelineConfig.model_validate({"kafka": kafka}))(b"\0\0\0\0\1x")


def test_a_schema_that_cannot_be_read_is_a_fault(registry: SchemaRegistry) -> None:
    number = registry.register("broken", {"schema": '{"type": "of nobody"}'})
    found = fault(lines(registry)(b"\0" + number.to_bytes(4, "big") + b"x"))
    assert f"schema {number} cannot be read" in found.detail


def test_a_user_logs_in(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    number = registry.register("secret", {"schema": '"string"'})
    registry.password = "weir:open sesame"  # noqa: S105 - a test's
    monkeypatch.setenv("WEIR_REGISTRY_PASSWORD", "open sesame")
    kafka = {"format": "avro", "registry": {"url": registry.url, "user": "weir"}}
    read = AvroLines(PipelineConfig.model_validate({"kafka": kafka}))
    assert read(b"\0" + number.to_bytes(4, "big") + b"\x02a") == b'"a"'
    monkeypatch.delenv("WEIR_REGISTRY_PASSWORD")
    registry_of.cache_clear()
    with pytest.raises(KafkaSettingsError, match="user weir of the schema registry has no password"):
        AvroLines(PipelineConfig.model_validate({"kafka": kafka}))


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ({"format": "avro"}, "format = avro and registry.url belong together"),
        ({"registry": {"url": "http://r"}}, "format = avro and registry.url belong together"),
        ({"format": "avro", "registry": {"url": "r:8081"}}, "it must start with http:// or https://"),
        ({"format": "avro", "registry": {"user": "u"}}, "user is set, but no registry"),
        ({"format": "avro", "registry": {"url": "http://r", "password_file": "p"}}, "set user, too"),
    ],
)
def test_settings_that_do_not_fit_are_refused(kafka: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig.model_validate({"kafka": kafka})
