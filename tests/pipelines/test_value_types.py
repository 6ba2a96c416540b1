"""What a value means, by its type in each format: each cell of the table of docs/pipeline.md, and ids in all."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.sources.kafka.schema_registry import SchemaRegistry, schema_registry
from weir.contracts import MAX_ID_BYTES
from weir.contracts.interactions.catalogue_files import CatalogueError, decode_catalogue
from weir.contracts.interactions.interaction import MISSING_IDS
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.kafka.avro import AvroLines, registry_of
from weir.readers import Block, BlockId, Fault, Lines, LogConfig, Reading, Validator, chunks_of, discover, read_chunk

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
ABSENT = object()
SECONDS = 1_700_000_000
DATE = "2023-11-14T22:13:20Z"
MOMENT = datetime.fromtimestamp(SECONDS, UTC)
UNIQUE = UUID("0D79E5FD-9F1C-408E-8F4B-992A4D56DB3B")
GOOD: dict[str, Any] = {"user_id": "u", "item_id": "i", "timestamp": SECONDS}
FIELDS = {"as id": ("user_id", "item_id"), "as time": ("timestamp",), "as weight": ("weight",)}


@dataclass(frozen=True)
class Told:
    """The row that came out, or the reason and the detail of its letter."""

    row: dict[str, Any]
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Sample:
    """Values of a type: `kind` is how a format names it, `text` what an id is read as, `moment` what times mean."""

    kind: Any
    id: Any
    times: tuple[Any, ...]
    weight: Any
    text: str = "17"
    moment: datetime = MOMENT


Write = Callable[[Path, str, Any, Any], Told]
"""Of a folder, a field, the type of its value and the value: what a row with them is read as."""


def judged(*blocks: Block) -> Told:
    [block] = blocks
    valid, letters = Validator(LogConfig()).validate(block)
    assert len(valid.rows) + len(letters.letters) == 1
    if letters.letters:
        return Told({}, letters.letters[0].reason, letters.letters[0].detail)
    return Told(valid.rows.to_pylist()[0])


def read_file(path: Path, data: bytes) -> Told:
    path.write_bytes(data)
    [partition] = discover(str(path))
    chunks, _ = chunks_of(Reading(partition), 1 << 20)
    return judged(*(block for chunk in chunks for block in read_chunk(chunk, LogConfig(), 100, 1 << 20)))


def in_json(folder: Path, name: str, kind: Any, value: Any) -> Told:
    row = {key: one for key, one in (GOOD | {name: value}).items() if one is not ABSENT}
    return read_file(folder / "a.jsonl", json.dumps(row).encode() + b"\n")


def in_cells(folder: Path, name: str, kind: Any, value: Any) -> Told:
    text, row = io.StringIO(), GOOD | {name: value}
    writer = csv.DictWriter(text, [*row], delimiter=kind, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerow(row)
    return read_file(folder / {",": "a.csv", "\t": "a.tsv"}[kind], text.getvalue().encode())


def table_of(row: dict[str, Any], name: str, kind: Any, value: Any) -> bytes:
    arrays = {key: pa.array([one]) for key, one in row.items() if key != name}
    if value is not ABSENT:
        plain = kind.storage_type if isinstance(kind, pa.UuidType) else kind
        array = pa.array([value], plain)
        arrays[name] = pa.ExtensionArray.from_storage(kind, array) if plain is not kind else array
    data = io.BytesIO()
    # Other programs write the types of Parquet alone; only Arrow's own schema tells of a dictionary.
    pq.write_table(pa.table(arrays), data, store_schema=pa.types.is_dictionary(kind))
    return data.getvalue()


def in_parquet(folder: Path, name: str, kind: Any, value: Any) -> Told:
    return read_file(folder / "a.parquet", table_of(GOOD, name, kind, value))


@dataclass
class InAvro:
    """Messages as fastavro alone writes them."""

    registry: SchemaRegistry

    def __call__(self, folder: Path, name: str, kind: Any, value: Any) -> Told:
        kinds = {"user_id": "string", "item_id": "string", "timestamp": "long", name: kind}
        row = {key: one for key, one in (GOOD | {name: value}).items() if one is not ABSENT}
        fields = [{"name": key, "type": kinds[key]} for key in row]
        schema = {"type": "record", "name": "Event", "fields": fields}
        number, content = self.registry.register("events", {"schema": json.dumps(schema)}), io.BytesIO()
        schemaless_writer(content, parse_schema(schema), row)
        kafka = {"format": "avro", "registry": {"url": self.registry.url}}
        read = AvroLines(PipelineConfig.model_validate({"kafka": kafka}))
        line = read(b"\0" + number.to_bytes(4, "big") + content.getvalue())
        if isinstance(line, Fault):
            return Told({}, line.reason, line.detail)
        return judged(Block(BlockId("topic", 0), Lines([line], np.arange(1))))


@pytest.fixture(scope="module")
def writers() -> Iterator[dict[str, Write]]:
    with schema_registry() as registry:
        yield {"JSON": in_json, "CSV, TSV": in_cells, "Parquet": in_parquet, "Avro": InAvro(registry)}
    registry_of.cache_clear()


def spelled(kind: Any) -> Sample:
    return Sample(kind, "17", (str(SECONDS), "1.7e9", DATE), "2")


def raw(kind: Any) -> Sample:
    return Sample(kind, b"17", (str(SECONDS).encode(), DATE.encode()), b"2.0")


def numeric(kind: Any, of: Callable[[int], Any] = int) -> Sample:
    return Sample(kind, of(17), (of(SECONDS),), of(2))


def other(kind: Any, *values: Any) -> list[Sample]:
    return [Sample(kind, value, (value,), value) for value in values]


def avro(kind: str, **of: Any) -> dict[str, Any]:
    return {"type": kind, **of}


BROKEN, BOTH = b"\xff\xfe", (True, False)
WHOLE, CENTS = {"precision": 20, "scale": 0}, {"precision": 20, "scale": 2}
MIDNIGHT = datetime(2023, 11, 14, tzinfo=UTC)
NANOS = SECONDS * 10**9
DAY = MIDNIGHT.date()
CODE = avro("enum", name="Code", symbols=["A17"])
INNER = avro("record", name="Inner", fields=[{"name": "a", "type": "string"}])
SAMPLES: dict[tuple[str, str], list[Sample]] = {
    ("JSON", "string"): [spelled(None)],
    ("JSON", "integer"): [numeric(None), Sample(None, 10**30, (NANOS,), 2, str(10**30))],
    ("JSON", "number with a fraction or an exponent"): [numeric(None, float)],
    ("JSON", "boolean"): other(None, *BOTH),
    ("JSON", "array, object"): other(None, [], ["u"], {}, {"a": 1}),
    ("JSON", "null, or no field"): other(None, None, ABSENT),
    ("CSV, TSV", "value"): [spelled(","), spelled("\t"), Sample(",", "1.10", ("1700000000.0",), "2e0", "1.10")],
    ("CSV, TSV", "empty value"): [*other(",", ""), *other("\t", "")],
    ("Parquet", "string, also as dictionary"): [
        spelled(kind) for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))
    ],
    ("Parquet", "bytes, of fixed size or not"): [
        *(raw(kind) for kind in (pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.binary()))),
        Sample(pa.binary(10), b"customer-7", (b"1700000000",), b"2.00000000", "customer-7"),
    ],
    ("Parquet", "bytes that are not UTF-8"): [*other(pa.binary(), BROKEN), *other(pa.binary(2), BROKEN)],
    ("Parquet", "integer, signed or not"): [
        numeric(kind) for kind in (pa.int32(), pa.int64(), pa.uint32(), pa.uint64())
    ],
    ("Parquet", "decimal of scale 0"): [
        numeric(kind, Decimal) for kind in (pa.decimal128(38, 0), pa.decimal128(10, 0), pa.decimal256(70, 0))
    ],
    ("Parquet", "decimal with a scale"): [
        numeric(kind, Decimal) for kind in (pa.decimal128(38, 2), pa.decimal128(18, 6))
    ],
    ("Parquet", "float, double"): [numeric(kind, float) for kind in (pa.float32(), pa.float64())],
    ("Parquet", "UUID"): [Sample(pa.uuid(), UNIQUE.bytes, (UNIQUE.bytes,), UNIQUE.bytes, str(UNIQUE))],
    ("Parquet", "boolean"): other(pa.bool_(), *BOTH),
    ("Parquet", "date"): [Sample(pa.date32(), DAY, (DAY,), DAY, moment=MIDNIGHT)],
    ("Parquet", "timestamp"): [
        Sample(pa.timestamp(unit, zone), MOMENT, (MOMENT,), MOMENT)
        for unit in ("ms", "us", "ns")
        for zone in ("UTC", None)
    ],
    ("Parquet", "time of day"): [*other(pa.time32("ms"), time(8)), *other(pa.time64("us"), time(8))],
    ("Parquet", "list, struct, map"): [
        *other(pa.list_(pa.string()), ["u"]),
        *other(pa.struct({"a": pa.string()}), {"a": "u"}),
        *other(pa.map_(pa.string(), pa.string()), [("a", "u")]),
    ],
    ("Parquet", "null, or no column"): [*other(pa.string(), None, ABSENT), *other(pa.null(), None)],
    ("Avro", "string, enum"): [spelled("string"), Sample(CODE, "A17", (), None, "A17")],
    ("Avro", "bytes, fixed"): [
        raw("bytes"),
        raw(["null", "bytes"]),
        Sample(avro("fixed", name="Ten", size=10), b"customer-7", (b"1700000000",), b"2.00000000", "customer-7"),
    ],
    ("Avro", "bytes that are not UTF-8"): other("bytes", BROKEN),
    ("Avro", "int, long"): [numeric("int"), numeric("long")],
    ("Avro", "timestamp-millis, -micros, -nanos"): [
        Sample(avro("long", logicalType=f"timestamp-{unit}"), 17, (NANOS // per,), 2)
        for unit, per in (("millis", 10**6), ("micros", 1000), ("nanos", 1))
    ],
    ("Avro", "decimal of scale 0"): [numeric(avro("bytes", logicalType="decimal", **WHOLE), Decimal)],
    ("Avro", "decimal with a scale"): [numeric(avro("bytes", logicalType="decimal", **CENTS), Decimal)],
    ("Avro", "float, double"): [numeric("float", float), numeric("double", float)],
    ("Avro", "uuid"): [
        Sample(avro("string", logicalType="uuid"), str(UNIQUE).upper(), (str(UNIQUE),), str(UNIQUE), str(UNIQUE)),
        Sample(
            avro("fixed", name="Unique", size=16, logicalType="uuid"),
            UNIQUE.bytes,
            (UNIQUE.bytes,),
            UNIQUE.bytes,
            str(UNIQUE),
        ),
    ],
    ("Avro", "boolean"): other("boolean", *BOTH),
    ("Avro", "date"): [Sample(avro("int", logicalType="date"), DAY, (DAY,), DAY, moment=MIDNIGHT)],
    ("Avro", "time-millis, time-micros"): [
        *other(avro("int", logicalType="time-millis"), time(8)),
        *other(avro("long", logicalType="time-micros"), time(8)),
    ],
    ("Avro", "array, map, record"): [
        *other(avro("array", items="string"), ["u"]),
        *other(avro("map", values="string"), {"a": "u"}),
        *other(INNER, {"a": "u"}),
    ],
    ("Avro", "null, or no field"): other(["null", "string"], None, ABSENT),
}
READ = {
    "as id": {"the text", "its digits", "its canonical text", "the text in UTF-8"},
    "as time": {"number or date that it spells", "number", "midnight in UTC", "the moment, in UTC without a zone"},
    "as weight": {"number that it spells", "number"},
}


def told_in_the_docs() -> dict[tuple[str, str], dict[str, str]]:
    """Return the cells of each row of the table, by the names of their columns."""
    table = PAGE.read_text().partition("| in | type |")[2].partition("\n\n")[0]
    [head, _, *rows] = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in f"in | type |{table}".split("\n")
    ]
    return {(row[0], row[1]): dict(zip(head[2:], row[2:], strict=True)) for row in rows}


def test_the_table_and_the_samples_have_the_same_types() -> None:
    assert told_in_the_docs().keys() == SAMPLES.keys()


def test_the_page_lists_the_texts_that_stand_for_no_id() -> None:
    told = PAGE.read_text().partition("By default these are ")[2].partition(". Blanks around")[0]
    assert tuple(re.findall("`(.*?)`", told)) == MISSING_IDS


@pytest.mark.parametrize("key", SAMPLES, ids=" ".join)
def test_each_cell_of_the_table_is_what_happens(
    key: tuple[str, str], writers: dict[str, Write], tmp_path: Path
) -> None:
    write = writers[key[0]]
    for role, cell in told_in_the_docs()[key].items():
        refused = re.fullmatch("`(.*)`", cell)
        for sample in SAMPLES[key]:
            for value in {"as id": (sample.id,), "as time": sample.times, "as weight": (sample.weight,)}[role]:
                for name in FIELDS[role]:
                    if value is None and role == "as weight" and cell != "1":
                        continue
                    told = write(tmp_path, name, sample.kind, value)
                    if refused:
                        assert told.reason == refused[1], (sample, name, told)
                    elif cell == "1":
                        assert told.row["weight"] == 1
                    else:
                        assert cell in READ[role]
                        expected = {"as id": sample.text, "as time": millis(sample.moment), "as weight": 2}[role]
                        assert told.row[name] == expected, (sample, name, told)


def millis(moment: datetime) -> int:
    return round(moment.timestamp()) * 1000


def folded(text: str) -> str:
    return text.strip().lower()


words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(
    lambda text: len(text.encode()) <= MAX_ID_BYTES and folded(text) not in {"", *map(folded, MISSING_IDS)}
)
blanks = st.text(" \t\xa0\u3000", max_size=3)
missing = st.one_of(
    blanks.filter(bool),
    st.builds(
        lambda before, text, change, after: before + change(text) + after,
        blanks,
        st.sampled_from(MISSING_IDS),
        st.sampled_from([str, str.lower, str.upper, str.title]),
        blanks,
    ),
)
TEXT_TYPES: list[tuple[str, Any, Callable[[str], Any]]] = [
    ("JSON", None, str),
    ("CSV, TSV", ",", str),
    ("CSV, TSV", "\t", str),
    ("Parquet", pa.string(), str),
    ("Parquet", pa.dictionary(pa.int32(), pa.string()), str),
    ("Parquet", pa.binary(), str.encode),
    ("Avro", "string", str),
    ("Avro", "bytes", str.encode),
]
DIGITS: list[tuple[str, Any, Callable[[int], Any]]] = [
    *((form, kind, lambda number, of=of: of(str(number))) for form, kind, of in TEXT_TYPES),
    ("JSON", None, int),
    ("Parquet", pa.int64(), int),
    ("Parquet", pa.decimal128(38, 0), Decimal),
    ("Avro", "long", int),
    ("Avro", avro("bytes", logicalType="decimal", **WHOLE), Decimal),
]


# Blanks at the ends of a value of CSV are no part of it, so that they are not drawn here.
@given(text=words.map(str.strip))
def test_a_text_is_the_same_id_in_every_format(
    text: str, writers: dict[str, Write], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for form, kind, of in TEXT_TYPES:
        assert writers[form](folder, "user_id", kind, of(text)).row["user_id"] == text
    [found] = decode_catalogue("items.jsonl", json.dumps({"item_id": text}).encode()).ids.to_pylist()
    assert found == text


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_an_integer_is_the_same_id_in_every_format(
    number: int, writers: dict[str, Write], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for form, kind, of in DIGITS:
        assert writers[form](folder, "item_id", kind, of(number)).row["item_id"] == str(number)
    for kind, value in ((pa.int64(), number), (pa.decimal128(38, 0), Decimal(number))):
        data = table_of({"item_id": ""}, "item_id", kind, value)
        assert decode_catalogue("items.parquet", data).ids.to_pylist() == [str(number)]


@given(text=missing, name=st.sampled_from(["user_id", "item_id", "event_id"]))
def test_a_text_for_no_id_is_refused_in_every_format(
    text: str, name: str, writers: dict[str, Write], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for form, kind, of in TEXT_TYPES:
        if form == "CSV, TSV" and text != text.strip():
            continue
        told = writers[form](folder, name, kind, of(text))
        assert told.reason == ("missing_id" if text.strip() else "empty_id")
        assert text.strip() in told.detail.replace("\\\\", "\\")
    with pytest.raises(CatalogueError, match="stands for no id"):
        decode_catalogue("items.jsonl", json.dumps({"item_id": text}).encode())


@pytest.mark.parametrize(
    "case",
    [
        ("JSON", None, 1.0, "user_id is 1.0, a floating-point number"),
        ("JSON", None, True, "user_id is true, a boolean"),
        ("Parquet", pa.float64(), 17.0, "the first value is 17.0"),
        ("Parquet", pa.decimal128(9, 2), Decimal("1.10"), "the first value is 1.10"),
        ("Avro", "double", 1.5, "user_id is 1.5, a floating-point number"),
        ("Avro", avro("bytes", logicalType="decimal", **CENTS), Decimal("1.10"), "user_id is 1.10"),
    ],
)
def test_what_cannot_be_an_id_is_shown_with_what_to_write(
    case: tuple[str, Any, Any, str], writers: dict[str, Write], tmp_path: Path
) -> None:
    form, kind, value, said = case
    told = writers[form](tmp_path, "user_id", kind, value)
    assert (told.reason, said in told.detail, "write it as" in told.detail) == ("wrong_type", True, True)


@pytest.mark.parametrize(
    "case",
    [
        ("JSON", None, 10**30, str(10**30)),
        ("JSON", None, -(2**63), str(-(2**63))),
        ("JSON", None, "99999999999999999999", "'99999999999999999999'"),
        ("CSV, TSV", ",", "-9223372036854775808", "'-9223372036854775808'"),
        ("Parquet", pa.uint64(), 2**63, str(2**63)),
        ("Parquet", pa.decimal128(38, 0), Decimal(10**37), str(10**37)),
        ("Parquet", pa.timestamp("ms"), 2**62, str(2**62)),
        ("Avro", "long", 2**63 - 1, "9223372036854775807"),
    ],
)
def test_a_time_out_of_range_is_shown_as_the_log_has_it(
    case: tuple[str, Any, Any, str], writers: dict[str, Write], tmp_path: Path
) -> None:
    form, kind, value, shown = case
    told = writers[form](tmp_path, "timestamp", kind, value)
    assert (told.reason, told.detail.startswith(f"timestamp is {shown}")) == ("timestamp_out_of_range", True), told


def test_booleans_are_types_of_events_in_every_format(writers: dict[str, Write], tmp_path: Path) -> None:
    config = LogConfig(event_types={"true": "positive", "false": "negative"})
    lines = [json.dumps(GOOD | {"event_type": value}).encode() for value in (True, False, "true")]
    valid, letters = Validator(config).validate(Block(BlockId("a", 0), Lines(lines, np.arange(3))))
    assert (valid.rows["label"].to_pylist(), letters.letters) == ([1, -1, 1], ())
    for form, kind in (("Parquet", pa.bool_()), ("Avro", "boolean")):
        assert writers[form](tmp_path, "event_type", kind, BOTH[0]).row["label"] == 1


def test_a_list_of_ones_own_replaces_the_texts_for_no_id() -> None:
    lines = [json.dumps(GOOD | {"user_id": user}).encode() for user in ("NA", "0", 0, " ", "u")]
    block = Block(BlockId("a", 0), Lines(lines, np.arange(5)))
    valid, letters = Validator(LogConfig(missing_ids=("0",))).validate(block)
    assert valid.rows["user_id"].to_pylist() == ["NA", "u"]
    assert [letter.reason for letter in letters.letters] == ["missing_id", "missing_id", "empty_id"]
