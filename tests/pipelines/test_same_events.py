"""The same table gives the same events and the same dead letters in every format."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.sources.kafka.schema_registry import SchemaRegistry, schema_registry
from weir.pipelines.config import PipelineConfig
from weir.pipelines.sources.kafka.avro import AvroLines
from weir.readers import Block, BlockId, Lines, LogConfig, Validator, discover, read_log

NAMES = ("user_id", "item_id", "timestamp", "event_type", "weight", "genre", "price")
OTHERS = ("long", "nested", "number", "broken")
Row = dict[str, Any]

ids = st.sampled_from(["u", "u ", " u", '"', 'a"b', "a\nb", "a,b\r\n", "é", "0"])
ids |= st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=4).filter(str.strip)
sound = st.fixed_dictionaries(
    {
        "user_id": ids,
        "item_id": ids,
        "timestamp": st.sampled_from([1_700_000_000, 1_700_000_001_000]),
        "event_type": st.sampled_from(["click", "skip"]),
        "weight": st.sampled_from([None, 0.0, 1.0, 0.1, 1e-7]),
        "genre": st.none() | st.lists(st.sampled_from(["jazz", "new", "a,b", 'q"', "\n"]), min_size=1, max_size=3),
        "price": st.sampled_from([None, 0.1, -2.0, 1e30]),
        "long": st.sampled_from(["", "p" * 140_000]),
        "nested": st.none() | st.lists(st.sampled_from(['a"', "\nu,evil,1700000000,click,1,,\n"]), max_size=2),
        "number": st.sampled_from([None, 1.5, float("nan"), float("-inf")]),
        "broken": st.sampled_from([b"", b"\xff\xfe", b"fine", b"\xed\xa0\x80", "é".encode()]),
    }
)
# One for each row: which of several is named depends on the format.
faults = st.sampled_from(
    [
        {},
        {"user_id": None},
        {"user_id": "\t"},
        {"item_id": " \n"},
        {"item_id": "NaN"},
        {"item_id": "x" * 513},
        {"timestamp": None},
        {"timestamp": 5},
        {"event_type": "other"},
        {"event_type": None},
        *({"weight": weight} for weight in (-1.0, 100.5, 1e300, float("nan"), float("inf"))),
        *({"price": price} for price in (1e300, float("nan"), float("-inf"))),
        {"genre": ["x" * 513]},
    ]
)
rows = st.tuples(sound, st.just({}) | faults).map(lambda both: both[0] | both[1])
CONFIG = PipelineConfig.model_validate(
    {
        "event_types": {"click": "positive", "skip": "negative"},
        "item_features": {"categorical": ["genre"], "dense": ["price"]},
        "kafka": {"format": "avro", "registry": {"url": "http://localhost:1"}},
    }
)
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user_id", "type": ["null", "string"]},
        {"name": "item_id", "type": ["null", "string"]},
        {"name": "timestamp", "type": ["null", "long"]},
        {"name": "event_type", "type": ["null", "string"]},
        {"name": "weight", "type": ["null", "double"]},
        {"name": "genre", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "price", "type": ["null", "double"]},
        {"name": "long", "type": "string"},
        {"name": "nested", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "number", "type": ["null", "double"]},
        {"name": "broken", "type": "string"},
    ],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def delimited(table: list[Row], delimiter: str) -> bytes:
    """Return the table with every value in quotes, as the standard library writes it."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow([*NAMES, *OTHERS])
    for row in table:
        genre, nested = "|".join(row["genre"] or ()), json.dumps(row["nested"])
        broken = row["broken"].decode(errors="surrogateescape")
        cells = row | {"genre": genre, "nested": "\n".join(row["nested"] or [nested]), "broken": broken}
        writer.writerow(["" if cells[name] is None else cells[name] for name in (*NAMES, *OTHERS)])
    return text.getvalue().encode(errors="surrogateescape")


def json_lines(table: list[Row], _: str = "") -> bytes:
    names = [*NAMES, *OTHERS[:-1]]
    heads = [json.dumps({name: row[name] for name in names}).encode()[:-1] for row in table]
    return b"".join(head + b', "broken": "' + row["broken"] + b'"}\n' for head, row in zip(heads, table, strict=True))


def parquet(table: list[Row], _: str = "") -> bytes:
    text, number = pa.string(), pa.float64()
    kinds = [text, text, pa.int64(), text, number, pa.list_(text), number, text, pa.list_(text), number, pa.binary()]
    names = (*NAMES, *OTHERS)
    arrays = [pa.array([row[name] for row in table], kind) for name, kind in zip(names, kinds, strict=True)]
    arrays[-1] = arrays[-1].view(text)
    content = BytesIO()
    pq.write_table(pa.table(arrays, names=names), content)
    return content.getvalue()


def avro(table: list[Row], number: int) -> list[bytes]:
    """Return a message for each row; bytes are laid out as strings are, which need not be UTF-8 then."""
    fields: Any = AVRO["fields"]
    laid_out = [one | {"type": "bytes"} if one["name"] == "broken" else one for one in fields]
    schema, found = parse_schema(AVRO | {"fields": laid_out}), []
    for row in table:
        content = BytesIO(b"\0" + number.to_bytes(4, "big"))
        content.seek(0, io.SEEK_END)
        schemaless_writer(content, schema, row)
        found.append(content.getvalue())
    return found


def outcomes(found: list[tuple[Any, Any]]) -> list[Any]:
    """Return the event or the reason of each row, in order."""
    by_position: dict[int, Any] = {}
    for valid, letters in found:
        for row in valid.rows.to_pylist():
            assert row["position"] not in by_position
            by_position[row.pop("position")] = row
        for letter in letters.letters:
            assert letter.position not in by_position
            by_position[letter.position] = letter.reason
    return [by_position[position] for position in sorted(by_position)]


WRITERS: dict[str, Callable[[list[Row], str], bytes]] = {
    "log.csv": lambda table, _: delimited(table, ","),
    "LOG.CSV.GZ": lambda table, _: gzip.compress(delimited(table, ";")),
    "log.tsv": lambda table, _: delimited(table, "\t"),
    "log.jsonl": json_lines,
    "log.Json.gz": lambda table, _: gzip.compress(json_lines(table)),
    "log.parquet": parquet,
}


@settings(max_examples=60, deadline=None)
@given(table=st.lists(rows, min_size=1, max_size=6))
def test_the_same_table_gives_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, registry: SchemaRegistry, table: list[Row]
) -> None:
    folder: Path = tmp_path_factory.mktemp("log")
    config = LogConfig.model_validate({name: getattr(CONFIG, name) for name in LogConfig.model_fields})
    found: dict[str, list[Any]] = {}
    for name, write in WRITERS.items():
        (folder / name).write_bytes(write(table, name))
        found[name] = outcomes(list(read_log(discover(str(folder / name)), config)))
        assert len(found[name]) == len(table)
    kafka = CONFIG.kafka.model_copy(update={"registry": CONFIG.kafka.registry.model_copy(update={"url": registry.url})})
    spell = AvroLines(CONFIG.model_copy(update={"kafka": kafka}))
    values = avro(table, registry.register("events", {"schema": json.dumps(AVRO)}))
    lines = [spell(value) for value in values]
    good = [number for number, line in enumerate(lines) if isinstance(line, bytes)]
    block = Block(BlockId("topic", 0), Lines([line for line in lines if isinstance(line, bytes)], np.array(good, int)))
    [*events] = outcomes([Validator(config, needs_time=False).validate(block)])
    found["topic"] = [
        events.pop(0) if number in good else str(lines[number].reason)  # type: ignore[union-attr]
        for number in range(len(table))
    ]
    for name, events in found.items():
        assert repr(events) == repr(found["log.parquet"]), name
