import gzip
import io
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.contracts import MAX_ID_BYTES, FeatureNames
from weir.contracts.interactions.catalogue import ALWAYS, Catalogue
from weir.contracts.interactions.catalogue_files import CatalogueError, decode_catalogue
from weir.contracts.interactions.features import MAX_VALUES
from weir.contracts.interactions.interaction import MISSING_IDS
from weir.contracts.storage.remote_files import WatchedFile
from weir.readers.delimited import read_columns
from weir.readers.delimited import rows_of as table_rows_of

EIGHT = datetime(2026, 11, 20, 8, tzinfo=UTC)
EIGHT_MS = round(EIGHT.timestamp() * 1000)

Row = tuple[set[str], int, int]


def rows_of(catalogue: Catalogue) -> dict[str, Row]:
    """Return the tags and times of each item."""
    found = {}
    for entry, item in enumerate(catalogue.ids.to_pylist()):
        numbers = catalogue.numbers[catalogue.offsets[entry] : catalogue.offsets[entry + 1]]
        tags = [catalogue.tags[number] for number in numbers]
        assert len(tags) == len(set(tags))
        found[item] = (set(tags), int(catalogue.starts[entry]), int(catalogue.ends[entry]))
    return found


def encoded(rows: list[dict[str, object]], ending: str) -> bytes:
    if ending == ".parquet":
        schema = pa.schema(
            {
                "item_id": pa.string(),
                "tags": pa.list_(pa.string()),
                "available_from": pa.timestamp("us", "UTC"),
                "available_until": pa.timestamp("us", "UTC"),
                "price": pa.float64(),
            }
        )
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
        return buffer.getvalue()
    texts = [
        {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
        for row in rows
    ]
    if ending == ".csv":
        flat = [{**row, "tags": None if row.get("tags") is None else "|".join(row["tags"])} for row in texts]
        columns = ("item_id", "tags", "available_from", "available_until", "price")
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(
            pa.table(
                {
                    name: pa.array([row.get(name) for row in flat], None if name == "price" else pa.string())
                    for name in columns
                }
            ),
            buffer,
        )
        return buffer.getvalue()
    return b"".join(json.dumps(row).encode() + b"\n" for row in texts)


names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="|"), min_size=1, max_size=8)
item_ids = names.filter(lambda name: name.strip() and name.strip().lower() not in map(str.lower, MISSING_IDS))
times = st.one_of(st.none(), st.integers(0, 4_000_000_000_000).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC)))


@given(
    rows=st.lists(st.tuples(item_ids, st.one_of(st.none(), st.lists(names, min_size=1)), times, times), max_size=12),
    ending=st.sampled_from([".parquet", ".jsonl", ".csv"]),
)
def test_every_format_says_the_same(
    rows: list[tuple[str, list[str] | None, datetime | None, datetime | None]], ending: str
) -> None:
    given_rows = [
        {"item_id": item, "tags": tags, "available_from": start, "available_until": end, "price": 1.5}
        for item, tags, start, end in rows
    ]
    expected = {item: (set(tags or ()), _ms(start, ALWAYS[0]), _ms(end, ALWAYS[1])) for item, tags, start, end in rows}
    data = encoded(given_rows, ending)
    if not data:
        return
    found = decode_catalogue(f"items{ending}", data)
    assert rows_of(found) == expected
    assert found.refused == 0


def _ms(moment: datetime | None, missing: int) -> int:
    return missing if moment is None else int(moment.timestamp() * 1_000_000 + 0.5) // 1000


def test_the_last_row_of_an_item_counts() -> None:
    lines = b'{"item_id": "a", "tags": ["x"]}\n{"item_id": "b"}\n{"item_id": "a", "tags": ["y", "", "y"]}\n'
    assert rows_of(decode_catalogue("items.jsonl", lines)) == {"a": ({"y"}, *ALWAYS), "b": (set(), *ALWAYS)}


@pytest.mark.parametrize(
    "text",
    [
        '"2026-11-20T08:00:00Z"',
        '"2026-11-20T09:00:00+01:00"',
        '"2026-11-20T08:00:00.000"',
        str(EIGHT_MS),
        f'"{EIGHT_MS}"',
    ],
)
def test_times_may_be_spelt_in_several_ways(text: str) -> None:
    line = f'{{"item_id": "a", "available_from": {text}}}\n{{"item_id": "b", "available_until": "2026-11-20"}}'.encode()
    found = rows_of(decode_catalogue("https://host/items.ndjson?v=1", line))
    assert found["a"] == (set(), EIGHT_MS, ALWAYS[1])
    assert found["b"] == (set(), ALWAYS[0], EIGHT_MS - 8 * 3_600_000)


def test_what_is_wrong_with_a_line_costs_that_line_only() -> None:
    lines = [
        b'{"item_id": "good", "tags": ["x"]}',
        b'{"item_id": "cut off"',
        b"[1, 2]",
        b'{"item_id": "no list", "tags": "x"}',
        b'{"item_id": "no tags", "tags": [1]}',
        b'{"item_id": "no time", "available_from": "soon"}',
        b'{"item_id": "no number", "available_until": true}',
        b'{"item_id": "half \\ud800"}',
        b'{"item_id": "not UTF-8 \xff"}',
        b'{"tags": ["x"]}',
        b'{"item_id": ""}',
        b'{"item_id": "' + b"a" * (MAX_ID_BYTES + 1) + b'"}',
        b'{"item_id": 7}',
        b"",
    ]
    found = decode_catalogue("items.jsonl", b"\n".join(lines))
    assert set(rows_of(found)) == {"good", "7"}
    assert found.refused == 11
    assert found.problem.startswith("line 2: ")


def test_rows_of_other_formats_are_left_out_too() -> None:
    found = decode_catalogue("items.csv", b"item_id,tags,available_until\na,x|y,2026-11-20\nb,x,never\nc\n,z,\nd,,\n")
    assert set(rows_of(found)) == {"a", "d"}
    assert found.refused == 3
    buffer = io.BytesIO()
    pq.write_table(pa.table({"item_id": [1, None, 3], "tags": ["x|y", None, ""]}), buffer)
    numbered = decode_catalogue("items.parquet", buffer.getvalue())
    assert rows_of(numbered) == {"1": ({"x", "y"}, *ALWAYS), "3": (set(), *ALWAYS)}
    assert numbered.refused == 1


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("items.txt", b"a", "a catalogue ends in .parquet"),
        ("items.jsonl", b"", "is empty"),
        ("items.jsonl", b"no json\n", "none of its 1 rows can be used: line 1"),
        ("items.parquet", b"no parquet", "items.parquet"),
        ("items.csv", b"id,tags\na,x\n", "none of its 1 rows can be used"),
        ("items.csv.gz", b"no gzip", "gzip"),
        ("items.jsonl.gz", gzip.compress(b'{"item_id": "a"}', mtime=0)[:-5], "items.jsonl.gz"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused_by_name(name: str, data: bytes, problem: str) -> None:
    with pytest.raises(CatalogueError, match=problem):
        decode_catalogue(name, data)


def test_files_may_be_compressed() -> None:
    assert set(rows_of(decode_catalogue("items.csv.gz", gzip.compress(b"item_id\na\n")))) == {"a"}


def test_a_watched_file_has_another_stamp_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    file = WatchedFile(str(path))
    with pytest.raises(FileNotFoundError):
        file.stamp()
    path.write_bytes(b"one")
    first = file.stamp()
    assert file.stamp() == first
    other = tmp_path / "other"
    other.write_bytes(b"two")
    other.replace(path)
    assert file.stamp() != first
    assert file.read() == b"two"


FEATURES = FeatureNames(categorical=("genre", "artist"), dense=("price",))
texts = st.text("abcäö ", min_size=1, max_size=4).map(str.strip).filter(bool)
told = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "genre": st.lists(texts, max_size=3) | texts,
            "artist": st.lists(texts, max_size=3),
            "price": st.floats(-1e6, 1e6, width=32) | st.integers(-1000, 1000),
        },
    ),
    min_size=1,
    max_size=5,
)


def features_in(catalogue: Catalogue) -> list[dict[str, object]]:
    assert catalogue.features.schema.equals(pa.schema(FEATURES.fields))
    return [{name: value for name, value in row.items() if value is not None} for row in catalogue.features.to_pylist()]


def wanted(row: dict[str, object]) -> dict[str, object]:
    lists = {name: [value] if isinstance(value, str) else value for name, value in row.items() if name != "price"}
    return lists | ({"price": float(row["price"])} if "price" in row else {})  # type: ignore[arg-type]


@given(told)
def test_features_of_json_lines_are_read_as_strings_lists_and_numbers(rows: list[dict[str, object]]) -> None:
    lines = "".join(json.dumps({"item_id": f"i{place}", **row}) + "\n" for place, row in enumerate(rows))
    found = decode_catalogue("items.jsonl", lines.encode(), FEATURES)
    assert found.refused == 0
    assert features_in(found) == [wanted(row) for row in rows]


@given(told)
def test_features_of_parquet_and_csv_are_those_of_json_lines(rows: list[dict[str, object]]) -> None:
    lists = [wanted(row) for row in rows]
    ids = [f"i{place}" for place in range(len(rows))]
    table = pa.table(
        [ids, *([row.get(name) for row in lists] for name in FEATURES.all)], names=["item_id", *FEATURES.all]
    )
    table = table.cast(pa.schema([pa.field("item_id", pa.string()), *FEATURES.fields]))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    assert features_in(decode_catalogue("items.parquet", buffer.getvalue(), FEATURES)) == lists
    flat = pa.table(
        {
            "item_id": ids,
            "genre": ["|".join(row.get("genre", ())) for row in lists],  # type: ignore[arg-type]
            "price": pa.array([row.get("price") for row in lists], pa.float64()),
        }
    )
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(flat, buffer)
    found = features_in(decode_catalogue("items.csv", buffer.getvalue(), FEATURES))
    assert [row.get("price") for row in found] == [row.get("price") for row in lists]
    assert [row.get("genre", []) for row in found] == [row.get("genre", []) for row in lists]


@pytest.mark.parametrize(
    "bad",
    [
        {"genre": 7},
        {"genre": ["a", None]},
        {"genre": [["a"]]},
        {"genre": ["a"] * (MAX_VALUES + 1)},
        {"price": "dear"},
        {"price": True},
        {"price": 1e300},
        {"genre": "half a \ud800 character"},
    ],
)
def test_rows_with_features_of_other_kinds_are_left_out_and_counted(bad: dict[str, object]) -> None:
    good = [{"item_id": "a", "genre": ["jazz"], "price": 2}, {"item_id": "c", "genre": "blues"}]
    lines = [good[0], {"item_id": "b", **bad}, good[1]]
    found = decode_catalogue("items.jsonl", "\n".join(map(json.dumps, lines)).encode(), FEATURES)
    assert found.ids.to_pylist() == ["a", "c"]
    assert found.refused == 1
    assert features_in(found) == [wanted({name: row[name] for name in row if name != "item_id"}) for row in good]


def test_a_price_in_csv_that_is_no_number_costs_its_row_alone() -> None:
    found = decode_catalogue("items.csv", b"item_id,price,genre\na,3.5,jazz|new\nb,dear,jazz\nc,,\n", FEATURES)
    assert found.ids.to_pylist() == ["a", "c"]
    assert (found.refused, found.problem) == (1, "price is no finite number")
    assert features_in(found)[0] == {"price": 3.5, "genre": ["jazz", "new"]}


def test_columns_that_no_feature_is_named_after_are_not_kept() -> None:
    found = decode_catalogue("items.jsonl", b'{"item_id": "a", "genre": 7, "price": "dear"}\n')
    assert found.ids.to_pylist() == ["a"]
    assert found.features.column_names == []


RAW = [
    *('"a"', '"x|y"', '""', "null", "true", "1", "1.5", "-1e300"),
    *("1e400", "1" + 400 * "0", "NaN", '"\\ud800"', "{}", "[]"),
    *('["x"]', '["x", null]', '["x", 1]', '[["x"]]', "[null]", json.dumps(["y"] * (MAX_VALUES + 1)), '["\\ud800"]'),
    *('"2026-11-20"', '"2026-11-20T08:00:00.0006Z"', "1795161600000", '"1795161600000"', '"0000-01-01"', '"soon"'),
    *('[\n"x"]', '1} {"item_id": "q"', '1}\n{"item_id": "q"', '1, "item_id": "q"', '"\xff"'),
]
FIELDS = ("tags", "available_from", "available_until", "genre", "artist", "price", "other")
lines = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(RAW))


def decoded(*texts: str) -> tuple[dict[str, object], int]:
    """Return the data of each item in a file, and how many rows are refused."""
    try:
        found = decode_catalogue("items.jsonl", "\n".join(texts).encode("latin-1"), FEATURES)
    except CatalogueError as error:
        return {}, int(re.search(r"none of its (\d+) rows", str(error)).group(1))  # type: ignore[union-attr]
    said = found.features.to_pylist()
    return {item: (row, said[place]) for place, (item, row) in enumerate(rows_of(found).items())}, found.refused


@given(st.lists(lines, min_size=1, max_size=4))
def test_what_a_line_says_depends_on_no_other(rows: list[dict[str, str]]) -> None:
    texts = [
        "{" + ", ".join([f'"item_id": "i{number}"', *(f'"{name}": {value}' for name, value in row.items())]) + "}"
        for number, row in enumerate(rows)
    ]
    alone = [decoded(text) for text in texts]
    expected = {item: said for found, _ in alone for item, said in found.items()}
    refused = sum(count for _, count in alone)
    assert decoded(*texts) == (expected, refused)
    assert decoded(*texts, "no json", '{"item_id": "last"}') == (
        expected | {"last": decoded('{"item_id": "last"}')[0]["last"]},
        refused + 1,
    )


def in_parquet(table: pa.Table) -> Catalogue:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return decode_catalogue("items.parquet", buffer.getvalue(), FEATURES)


@pytest.mark.parametrize(
    "text", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_texts_of_parquet_may_be_of_any_type(text: pa.DataType) -> None:
    found = in_parquet(
        pa.table(
            {
                "item_id": pa.array(["a", "b", None], text),
                "tags": pa.array(["x|y", None, "z"], text),
                "available_until": pa.array(["2026-11-20", None, None], text),
                "genre": pa.array(["jazz|new", None, "blues"], text),
                "price": pa.array([1.5, None, 2.0], pa.float32()),
            }
        )
    )
    assert rows_of(found) == {"a": ({"x", "y"}, ALWAYS[0], EIGHT_MS - 8 * 3_600_000), "b": (set(), *ALWAYS)}
    assert features_in(found) == [{"genre": ["jazz|new"], "price": 1.5}, {}]
    assert (found.refused, found.problem) == (1, "an item_id is missing, empty or longer than 512 bytes")


def test_texts_of_parquet_that_are_no_utf8_cost_their_rows() -> None:
    broken = pa.array([b"\xff", b"a", b"b", b"c"]).view(pa.string())
    tags = pa.ListArray.from_arrays([0, 1, 2, 3, 4], broken.take(pa.array([1, 0, 1, 1])))
    genres = pa.ListArray.from_arrays([0, 1, 2, 3, 4], broken.take(pa.array([1, 1, 0, 1])))
    found = in_parquet(pa.table({"item_id": broken, "tags": tags, "genre": genres}))
    assert rows_of(found) == {"c": ({"a"}, *ALWAYS)}
    assert (found.refused, found.problem) == (3, "an item_id is not UTF-8")


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("item_id", [1.5], "column item_id is of type double; allowed are strings and integers"),
        ("tags", [1.5], "column tags is of type double; allowed are strings, integers and lists of them"),
        (
            "genre",
            [{"a": 1}],
            "column genre is of type struct<a: int64>; allowed are strings, integers and lists of them",
        ),
        ("price", [[1]], "column price is of type list<element: int64>; allowed are numbers"),
    ],
)
def test_a_column_of_another_type_is_told_by_name(column: str, values: list[Any], problem: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(f"items.parquet: {problem}")):
        in_parquet(pa.table({"item_id": ["a"]} | {column: values}))


def test_a_text_that_stands_for_no_id_is_no_item_in_any_format() -> None:
    ids = ["a", "NaN", " ", "null", r"\N", "b"]
    lines = "\n".join(json.dumps({"item_id": item}) for item in ids).encode()
    cells = "\n".join(["item_id,tags", *(f'"{item}",x' for item in ids)]).encode()
    buffer = io.BytesIO()
    pq.write_table(pa.table({"item_id": pa.array(ids).cast(pa.binary())}), buffer)
    for name, data in (("items.jsonl", lines), ("items.csv", cells), ("items.parquet", buffer.getvalue())):
        found = decode_catalogue(name, data)
        assert (found.ids.to_pylist(), found.refused) == (["a", "b"], 4)
        assert found.problem == "an item_id stands for no id (pipeline.missing_ids): NaN"
        assert decode_catalogue(name, data, missing_ids=["b"]).ids.to_pylist() == ["a", "NaN", "null", r"\N"]


@pytest.mark.parametrize("item", ["1.0", "true", "[]"])
def test_what_cannot_be_an_id_costs_its_row_and_is_shown(item: str) -> None:
    found = decode_catalogue("items.jsonl", f'{{"item_id": "a"}}\n{{"item_id": {item}}}'.encode())
    assert (found.ids.to_pylist(), found.refused) == (["a"], 1)
    assert f"item_id is {item}; allowed are strings and integers" in found.problem


def test_decimals_and_texts_are_prices_and_floats_are_times() -> None:
    table = {"item_id": ["a", "b"], "price": pa.array([Decimal("9.50"), None], pa.decimal128(9, 2))}
    assert features_in(in_parquet(pa.table(table))) == [{"price": 9.5}, {}]
    found = decode_catalogue("items.jsonl", f'{{"item_id": "a", "available_until": {EIGHT_MS}.5}}'.encode())
    assert rows_of(found)["a"] == (set(), ALWAYS[0], EIGHT_MS)


cells = st.text("ab1 \"\t,;|\n'", min_size=1, max_size=6).filter(lambda text: text.strip())


def spelled(cell: str, before: str, after: str, *, quoted: bool, delimiter: str) -> str:
    """Return a value as a row may have it, with blanks around it."""
    is_plain = cell == cell.strip(" \t") and not any(sign in cell for sign in f'"\n{delimiter}')
    body = cell if is_plain and not quoted else '"' + cell.replace('"', '""') + '"'
    return "".join(sign for sign in before if sign != delimiter) + body + after.replace(delimiter, "")


@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    end=st.sampled_from(["\n", "\r\n"]),
    has_blanks=st.booleans(),
    data=st.data(),
)
def test_a_table_says_the_same_as_a_log_and_as_a_catalogue(
    rows: list[tuple[str, str]], delimiter: str, end: str, has_blanks: bool, data: st.DataObject
) -> None:
    text = ""
    for row in [("item_id", "tags", "title"), *((item, tag, "x, y") for item, tag in rows)]:
        # Tabs in the first row might be taken for separators.
        around = st.text(" \t" if text else " ", max_size=2 * has_blanks)
        parts = [
            spelled(cell, data.draw(around), data.draw(around), quoted=data.draw(st.booleans()), delimiter=delimiter)
            for cell in row
        ]
        text += delimiter.join(parts) + end
    lines = table_rows_of(text.encode(), is_tsv=False)
    assert lines.header is not None
    table, faults = read_columns(lines.lines, lines.header, {"item_id", "tags"})
    assert not faults
    as_log = list(zip(*(table[name].to_pylist() for name in ("item_id", "tags")), strict=True))
    assert as_log == rows
    found = decode_catalogue("items.csv", text.encode())
    assert found.refused == 0
    expected = {item: {tag for tag in (tags or "").split("|") if tag} for item, tags in as_log}
    assert {item: tags for item, (tags, *_) in rows_of(found).items()} == expected


def test_a_damaged_row_among_blanks_costs_its_line_alone() -> None:
    text = b'item_id , tags\n a , x\n"b" c, y\nd, z, more\n\n "e " ,"x|y" \nf, "never closed\ng,x\n'
    found = decode_catalogue("items.csv", text)
    assert {item: tags for item, (tags, *_) in rows_of(found).items()} == {"a": {"x"}, "e ": {"x", "y"}}
    assert found.refused == 3
